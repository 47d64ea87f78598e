-- name: try_retention_lock
-- One process at a time; held by the session, because detaching can't happen in a transaction.
SELECT pg_try_advisory_lock(hashtext('retention'));

-- name: release_retention_lock
SELECT pg_advisory_unlock(hashtext('retention'));

-- name: purge_run_events
-- In bites: one long DELETE would hold back vacuum for all tables.
DELETE FROM run_events WHERE id IN (
    SELECT id FROM run_events WHERE at < now() - make_interval(days => %(days)s)
    ORDER BY id LIMIT 10000);

-- name: purge_sessions
-- Sessions that ended long ago and own nothing; their attempts keep the id as plain text of history.
DELETE FROM worker_sessions s
WHERE s.ended_at < now() - make_interval(days => %(days)s)
  AND NOT EXISTS (SELECT FROM runs r WHERE r.lease_owner = s.session_id AND r.finished_at IS NULL);
