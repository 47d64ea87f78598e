-- name: fleet_waiting
-- How many runs wait, by what for (runs/domain/waiting.py), and for how long the oldest one waits
-- for a slot. One look at everything that is not over; history costs nothing.
-- Index: runs_active.
WITH by_tenant AS (
    SELECT tenant_id,
           count(*) FILTER (WHERE status = 'blocked') AS earlier_run,
           count(*) FILTER (WHERE is_ahead AND NOT was_tried) AS time,
           count(*) FILTER (WHERE is_ahead AND was_tried) AS retry_backoff,
           count(*) FILTER (WHERE is_ready AND lease_owner IS NOT NULL) AS worker,
           count(*) FILTER (WHERE is_ready AND lease_owner IS NULL) AS unplaced,
           min(ready_at) FILTER (WHERE is_ready AND lease_owner IS NULL) AS unplaced_since,
           count(*) FILTER (WHERE lease_owner IS NOT NULL AND (status = 'running' OR is_ready))
               AS occupied
    FROM (SELECT tenant_id, status, lease_owner, ready_at,
                 failures > 0 OR attempt > lease_losses + 1 AS was_tried,
                 status IN ('queued', 'leased') AND ready_at > now() AS is_ahead,
                 status IN ('queued', 'leased') AND ready_at <= now() AS is_ready
          FROM runs WHERE finished_at IS NULL) active
    GROUP BY tenant_id
)
SELECT coalesce(sum(earlier_run), 0)::bigint AS earlier_run,
       coalesce(sum(time), 0)::bigint AS time,
       coalesce(sum(retry_backoff), 0)::bigint AS retry_backoff,
       coalesce(sum(worker), 0)::bigint AS worker,
       coalesce(sum(unplaced) FILTER (WHERE occupied >= max_concurrent_runs), 0)::bigint
           AS tenant_concurrency,
       coalesce(sum(unplaced) FILTER (WHERE occupied < max_concurrent_runs), 0)::bigint AS slot,
       coalesce(extract(epoch FROM now() - min(unplaced_since) FILTER (
           WHERE occupied < max_concurrent_runs AND suspended_at IS NULL)), 0)::float8
           AS oldest_wait_s
FROM by_tenant JOIN tenants USING (tenant_id);

-- name: planner_lag
-- How long the earliest due cursor has been within the look-ahead; no row when none is.
-- Index: cursors_due.
SELECT extract(epoch FROM now() + make_interval(secs => %(look_ahead_s)s) - next_run_at)::float8
       AS lag_s
FROM schedule_cursors
WHERE next_run_at <= now() + make_interval(secs => %(look_ahead_s)s)
ORDER BY next_run_at
LIMIT 1;

-- name: database_sessions
-- Our sessions in the database by role and state; other databases of the server don't count.
SELECT substr(application_name, length(%(instance)s) + 2) AS role,
       coalesce(state, 'unknown') AS state, count(*) AS sessions,
       current_setting('max_connections')::int AS most
FROM pg_stat_activity
WHERE datname = current_database() AND starts_with(application_name, %(instance)s || '-')
GROUP BY 1, 2;
