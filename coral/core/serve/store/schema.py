"""The tables, as migrations in order: a released one never changes, a change is another one.

Times are seconds since the epoch. Columns called `value` hold JSON of a Struct.
"""

from __future__ import annotations

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE deployment (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
        "CREATE TABLE orders (id TEXT PRIMARY KEY, cloud TEXT NOT NULL, made_s REAL NOT NULL, "
        "value TEXT NOT NULL) STRICT",
        "CREATE TABLE machines (id TEXT PRIMARY KEY, cloud TEXT NOT NULL, order_id TEXT NOT NULL, "
        "since_s REAL NOT NULL, value TEXT NOT NULL) STRICT",
        "CREATE TABLE instances (id TEXT PRIMARY KEY, since_s REAL NOT NULL, value TEXT NOT NULL) STRICT",
        "CREATE TABLE plans (number INTEGER PRIMARY KEY AUTOINCREMENT, made_s REAL NOT NULL, "
        "reason TEXT NOT NULL, value TEXT NOT NULL) STRICT",
        "CREATE TABLE peers (public_key TEXT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, "
        "since_s REAL NOT NULL) STRICT",
        "CREATE TABLE join_tokens (public_key TEXT PRIMARY KEY, name TEXT NOT NULL, made_s REAL NOT NULL, "
        "expires_s REAL NOT NULL) STRICT",
        "CREATE TABLE demand (model TEXT NOT NULL, at_s REAL NOT NULL, value TEXT NOT NULL, "
        "PRIMARY KEY (model, at_s)) STRICT",
    ),
)
