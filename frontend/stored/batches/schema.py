"""The tables of files and batches. A change of them needs a new `VERSION`."""

from __future__ import annotations

VERSION = 1
NAME = "batches"
OPEN = ("validating", "in_progress", "finalizing", "cancelling")
ENDED = ("completed", "failed", "expired", "cancelled")


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(f"'{word}'" for word in words)


OPEN_LIST, ENDED_LIST = _listed(OPEN), _listed(ENDED)

# A statement is a transaction of its own. Triggers make the changes that must happen together.
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    purpose TEXT NOT NULL,
    filename TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('incomplete', 'complete', 'deleted'))
);
CREATE INDEX IF NOT EXISTS files_by_owner ON files (owner, created_at, id);
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    model TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    completion_window TEXT NOT NULL,
    input_file TEXT NOT NULL,
    output_seconds INTEGER NOT NULL,
    metadata TEXT,
    status TEXT NOT NULL,
    errors TEXT,
    output_file TEXT,
    error_file TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    in_progress_at INTEGER,
    finalizing_at INTEGER,
    completed_at INTEGER,
    failed_at INTEGER,
    expired_at INTEGER,
    cancelling_at INTEGER,
    cancelled_at INTEGER,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    result_bytes INTEGER NOT NULL DEFAULT 0,
    runner TEXT NOT NULL DEFAULT '',
    lease_until REAL NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS batches_by_owner ON batches (owner, created_at, id);
CREATE INDEX IF NOT EXISTS batches_by_status ON batches (status, created_at);
CREATE TABLE IF NOT EXISTS results (
    batch TEXT NOT NULL REFERENCES batches (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    line BLOB NOT NULL,
    PRIMARY KEY (batch, number)
);
CREATE TRIGGER IF NOT EXISTS count_result AFTER INSERT ON results BEGIN
    UPDATE batches
    SET completed = completed + 1 - NEW.failed,
        failed = failed + NEW.failed,
        result_bytes = result_bytes + length(NEW.line)
    WHERE id = NEW.batch;
END;
CREATE TRIGGER IF NOT EXISTS end_batch AFTER UPDATE OF status ON batches
WHEN NEW.status IN ({ENDED_LIST}) BEGIN
    UPDATE files SET state = 'complete', expires_at = created_at + NEW.output_seconds
    WHERE id IN (NEW.output_file, NEW.error_file);
    DELETE FROM results WHERE batch = NEW.id;
    UPDATE batches SET result_bytes = 0, runner = '' WHERE id = NEW.id;
END
"""
