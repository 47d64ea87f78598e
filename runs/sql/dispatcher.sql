-- name: try_dispatcher_lock
-- One dispatcher at a time: held to the end of the transaction, released with a dead connection.
SELECT pg_try_advisory_xact_lock(hashtext('dispatcher'));

-- name: open_sessions
-- Sessions that may be given runs.
-- Index: sessions_live.
SELECT session_id, queue, region, tiers, slots, prepared_limit
FROM worker_sessions
WHERE ended_at IS NULL AND accepting AND NOT draining AND NOT cordoned
  AND lease_expires_at > now()
  AND last_seen_at > now() - make_interval(secs => %(silent_s)s)
ORDER BY session_id;

-- name: held_runs
-- What each session and each tenant holds, in one reading: rows with a session, or with a tenant.
-- `occupied`: runs that occupy a slot or will by now; `ahead`: runs placed before their time;
-- `retries`: how many of both are in the lane of retries.
-- Index: runs_active.
SELECT lease_owner AS session_id, tenant_id,
       count(*) FILTER (WHERE status = 'running' OR ready_at <= now()) AS occupied,
       count(*) FILTER (WHERE status <> 'running' AND ready_at > now()) AS ahead,
       count(*) FILTER (WHERE failures > 0 AND trigger NOT IN ('catch_up', 'backfill')) AS retries
FROM runs
WHERE finished_at IS NULL AND lease_owner IS NOT NULL
GROUP BY GROUPING SETS ((lease_owner), (tenant_id));

-- name: waiting_days
-- The days that have unplaced runs, of those that began by the end of the place lead. Runs wait by
-- tenant, not by time, so nothing would prune: each look for one tenant's would go through every
-- day of history. Ordered by the index's first column, so that a look ends at the first it finds.
-- Index: runs_active.
SELECT d.day
FROM (SELECT to_timestamp(right(c.relname, 8) || '+00', 'YYYYMMDDTZH') AS day
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
      WHERE i.inhparent = 'runs'::regclass) d
CROSS JOIN LATERAL (
    SELECT FROM runs r
    WHERE r.scheduled_for >= d.day AND r.scheduled_for < d.day + interval '24 hours'
      AND r.scheduled_for <= now() + make_interval(secs => %(place_lead_s)s)
      AND r.lease_owner IS NULL AND r.finished_at IS NULL
    ORDER BY r.lease_owner LIMIT 1) any_run
ORDER BY d.day;

-- name: waiting_runs
-- Tenants' next unplaced runs within the place lead, each tenant's in its own order: live work
-- (rank 0), retries (1) and catching up (2), so that a long row of one does not hide another. Only of
-- kinds (region and tier) that have room, for the same reason, and of tenants below their limit. What
-- is caught up or backfilled is placed once it is due, never ahead: it is behind all live work. Runs
-- past their deadline are left to expire_runs.
-- How many of a tenant: as many as there are places when few tenants wait, else its part of
-- %(reading)s rows by weight, and one at least. A batch that is filled by fewer than deserve it
-- is made good by the next, which counts what this one gave; without this bound each batch would
-- read a part of the backlog that grows with the number of tenants.
-- One day's: executed on that day's partition (store.fetch_of_day). `ORDER BY lease_owner`, which is
-- always null here, lets the index's order stand for that of `ready_at`.
-- Index: runs_active (lease_owner IS NULL, tenant, lane, ready_at).
WITH held AS MATERIALIZED (
    SELECT tenant_id, occupied
    FROM unnest(%(tenant_ids)s::uuid[], %(occupied)s::int[]) AS h(tenant_id, occupied)
), waiting AS MATERIALIZED (
    SELECT t.tenant_id, t.weight, t.max_concurrent_runs, lane.rank
    FROM tenants t
    LEFT JOIN held h ON h.tenant_id = t.tenant_id
    CROSS JOIN (VALUES (0), (1), (2)) AS lane(rank)
    CROSS JOIN LATERAL (
        SELECT FROM runs r
        WHERE r.lease_owner IS NULL AND r.finished_at IS NULL AND r.tenant_id = t.tenant_id
          AND CASE WHEN r.trigger IN ('catch_up', 'backfill') THEN 2
                   WHEN r.failures > 0 THEN 1 ELSE 0 END = lane.rank
          AND r.ready_at <= now() + make_interval(
                  secs => CASE WHEN lane.rank = 2 THEN 0 ELSE %(place_lead_s)s END)
        ORDER BY r.lease_owner, r.ready_at LIMIT 1) any_run
    WHERE t.suspended_at IS NULL AND t.max_concurrent_runs > coalesce(h.occupied, 0)
), total AS MATERIALIZED (
    SELECT sum(weight)::float8 AS weights FROM waiting
)
SELECT w.run_id, w.scheduled_for::text, t.tenant_id,
       extract(epoch FROM w.ready_at)::float8 AS ready_s,
       CASE WHEN w.ready_at > now() + make_interval(secs => %(prepare_lead_s)s)
            THEN extract(epoch FROM w.ready_at)::float8 - %(prepare_lead_s)s END AS eta_s,
       w.region, w.tier, w.ready_at <= now() AS is_due, t.rank, w.attempt,
       t.weight, t.max_concurrent_runs
FROM waiting t
CROSS JOIN total
CROSS JOIN LATERAL (
    SELECT r.run_id, r.scheduled_for, r.ready_at, r.region, r.tier, r.attempt
    FROM runs r
    WHERE r.lease_owner IS NULL AND r.finished_at IS NULL AND r.tenant_id = t.tenant_id
      AND CASE WHEN r.trigger IN ('catch_up', 'backfill') THEN 2
               WHEN r.failures > 0 THEN 1 ELSE 0 END = t.rank
      AND r.ready_at <= now() + make_interval(
              secs => CASE WHEN t.rank = 2 THEN 0 ELSE %(place_lead_s)s END)
      AND r.status = 'queued'
      AND (r.deadline_at > now() OR r.deadline_at IS NULL OR r.attempt > 1)
      AND r.region || ' ' || r.tier = ANY (%(kinds)s::text[])
    ORDER BY r.lease_owner, r.ready_at
    LIMIT least(%(places)s, ceil(%(reading)s * t.weight / total.weights)::int)
) w;

-- name: overdue_runs
-- Runs that wait past their deadline and have never begun: queued without a worker, or blocked.
-- (One that a worker holds is told at its go.) No lock: their guards come first.
-- Index: runs_active.
SELECT run_id, scheduled_for, job_id FROM runs
WHERE lease_owner IS NULL AND finished_at IS NULL AND deadline_at <= now()
  AND status IN ('queued', 'blocked') AND attempt = 1
LIMIT %(limit)s;

-- name: expire_runs
-- Finish runs that are too late to begin. Guard: still waiting, unplaced and past the deadline; one
-- that was placed, cancelled or given another deadline meanwhile is missing from the answer.
-- Index: primary key (both columns, so that it prunes).
WITH late AS (
    SELECT r.run_id, r.scheduled_for
    FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[]) AS u(run_id, scheduled_for)
    JOIN runs r ON r.run_id = u.run_id AND r.scheduled_for = u.scheduled_for
    WHERE r.lease_owner IS NULL AND r.finished_at IS NULL AND r.deadline_at <= now()
      AND r.status IN ('queued', 'blocked') AND r.attempt = 1
    ORDER BY r.run_id
    FOR UPDATE OF r
)
UPDATE runs r
SET status = 'skipped', skip_reason = 'deadline', finished_at = clock_timestamp()
FROM late l
WHERE r.run_id = l.run_id AND r.scheduled_for = l.scheduled_for
RETURNING r.run_id, r.scheduled_for, r.job_id;

-- name: place_runs
-- Give runs to sessions. Guard: still queued and unplaced; a run that was cancelled, deleted or
-- placed meanwhile is missing from the answer. Locked rows are skipped: their turn comes again.
-- Index: primary key (both columns, so that it prunes).
WITH chosen AS (
    SELECT r.run_id, r.scheduled_for, u.session_id
    FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[], %(sessions)s::uuid[])
         AS u(run_id, scheduled_for, session_id)
    JOIN runs r ON r.run_id = u.run_id AND r.scheduled_for = u.scheduled_for
    WHERE r.status = 'queued' AND r.lease_owner IS NULL
    FOR UPDATE OF r SKIP LOCKED
)
UPDATE runs r
SET lease_owner = c.session_id, placed_at = now()
FROM chosen c
WHERE r.run_id = c.run_id AND r.scheduled_for = c.scheduled_for
RETURNING r.run_id;
