"""A node served with TLS, met from outside: handshakes good, bad and slow, certificates that change, and both doors."""
