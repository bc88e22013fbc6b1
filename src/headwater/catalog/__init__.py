"""The catalog: every stream's metadata in SQLite, true for a log position. Never holds payloads."""
