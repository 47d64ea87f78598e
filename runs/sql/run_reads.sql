-- name: session_of_run
-- The lease and the machine of the session that owns a run: one renewal keeps all its runs.
-- Index: primary key of worker_sessions.
SELECT node, lease_expires_at FROM worker_sessions WHERE session_id = %(session_id)s;

-- name: count_active_of_tenant
-- How many runs of a tenant occupy a slot, counted up to a limit.
-- Index: runs_active.
SELECT count(*) AS active FROM (
    SELECT FROM runs
    WHERE tenant_id = %(tenant_id)s AND finished_at IS NULL AND lease_owner IS NOT NULL
      AND (status = 'running' OR ready_at <= now())
    LIMIT %(limit)s
) occupied;
