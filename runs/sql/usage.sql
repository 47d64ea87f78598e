-- name: lag_of_tenant
-- How late a tenant's runs of the last hour started, of the latest so many of them; backfills are
-- late on purpose. A retried run's first start stands in its attempts.
-- Index: runs_by_tenant (tenant, scheduled_for); run_attempt_once for the retried ones.
WITH recent AS (
    SELECT r.due_at,
           CASE WHEN r.trigger = 'backfill' THEN NULL
                WHEN r.attempt = 1 THEN r.started_at
                ELSE (SELECT min(a.started_at) FROM run_attempts a
                      WHERE a.run_id = r.run_id AND a.scheduled_for = r.scheduled_for)
           END AS started_at
    FROM runs r
    WHERE r.tenant_id = %(tenant_id)s
      AND r.scheduled_for > now() - make_interval(secs => %(window_s)s)
      AND r.scheduled_for <= now()
    ORDER BY r.scheduled_for DESC, r.run_id DESC
    LIMIT %(most)s
)
SELECT count(*) >= %(most)s AS truncated, count(started_at) AS runs,
       percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (
           ORDER BY greatest(0, extract(epoch FROM started_at - due_at)::float8))
           FILTER (WHERE started_at IS NOT NULL) AS quantiles
FROM recent;

-- name: waiting_of_tenant
-- How many of a tenant's runs wait, by what for (runs/domain/waiting.py): of so many unplaced ones,
-- and of as many placed ones. In the index's own order: in another all would have to be read, and
-- in none the planner may read them all into a bitmap first.
-- Index: runs_active (lease_owner, tenant).
WITH active AS (
    (SELECT status, failures > 0 OR attempt > lease_losses + 1 AS was_tried, lease_owner, ready_at
     FROM runs
     WHERE lease_owner IS NULL AND finished_at IS NULL AND tenant_id = %(tenant_id)s
     ORDER BY lease_owner LIMIT %(most)s)
    UNION ALL
    (SELECT status, failures > 0 OR attempt > lease_losses + 1 AS was_tried, lease_owner, ready_at
     FROM runs
     WHERE lease_owner IS NOT NULL AND finished_at IS NULL AND tenant_id = %(tenant_id)s
       AND status IN ('queued', 'leased')
     ORDER BY lease_owner LIMIT %(most)s)
)
SELECT count(*) FILTER (WHERE status = 'blocked') AS earlier_run,
       count(*) FILTER (WHERE status <> 'blocked' AND ready_at > now() AND NOT was_tried) AS time,
       count(*) FILTER (WHERE status <> 'blocked' AND ready_at > now() AND was_tried)
           AS retry_backoff,
       count(*) FILTER (WHERE status <> 'blocked' AND ready_at <= now()
                          AND lease_owner IS NOT NULL) AS worker,
       count(*) FILTER (WHERE status <> 'blocked' AND ready_at <= now()
                          AND lease_owner IS NULL) AS unplaced,
       count(*) FILTER (WHERE lease_owner IS NULL) >= %(most)s
           OR count(*) FILTER (WHERE lease_owner IS NOT NULL) >= %(most)s AS truncated
FROM active;
