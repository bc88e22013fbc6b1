"""What a node keeps secret, and what it says with the help of that."""
