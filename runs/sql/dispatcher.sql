-- name: try_dispatcher_lock
-- One dispatcher at a time: held to the end of the transaction, released with a dead connection.
SELECT pg_try_advisory_xact_lock(hashtext('dispatcher'));

-- name: open_sessions
-- Sessions that may be given runs, with what they hold already.
-- `slots_used`: runs that occupy a slot or will by now; `ahead`: runs placed before their time.
-- Index: sessions_live, runs_active.
SELECT s.session_id, s.queue, s.region, s.tiers, s.slots, s.prepared_limit,
       count(r.run_id) FILTER (WHERE r.status = 'running' OR r.ready_at <= now()) AS slots_used,
       count(r.run_id) FILTER (WHERE r.status <> 'running' AND r.ready_at > now()) AS ahead
FROM worker_sessions s
LEFT JOIN runs r ON r.lease_owner = s.session_id AND r.finished_at IS NULL
WHERE s.ended_at IS NULL AND s.accepting AND NOT s.draining AND NOT s.cordoned
  AND s.lease_expires_at > now()
  AND s.last_seen_at > now() - make_interval(secs => %(silent_s)s)
GROUP BY s.session_id
ORDER BY s.session_id;

-- name: waiting_runs
-- Each tenant's next unplaced runs within the place lead, in its own order: live work (rank 0),
-- retries (1) and catching up (2) each up to the limit, so that a long row of one does not hide
-- another. Only of kinds (region, tier) that a session serves, for the same reason. What is caught
-- up or backfilled is placed once it is due, never ahead: it is behind all live work. Runs past
-- their deadline are left to expire_runs.
-- Index: runs_active (lease_owner IS NULL, tenant, caught up or not, ready_at).
WITH served AS MATERIALIZED (
    SELECT region, tier FROM unnest(%(regions)s::text[], %(tiers)s::text[]) AS s(region, tier)
)
SELECT t.tenant_id, t.weight, t.max_concurrent_runs, w.run_id, w.scheduled_for, w.ready_at,
       w.region, w.tier, w.is_due, lane.rank
FROM tenants t
CROSS JOIN (VALUES (0), (1), (2)) AS lane(rank)
CROSS JOIN LATERAL (
    SELECT r.run_id, r.scheduled_for, r.ready_at, r.region, r.tier, r.ready_at <= now() AS is_due
    FROM runs r
    WHERE r.lease_owner IS NULL AND r.finished_at IS NULL AND r.tenant_id = t.tenant_id
      AND (r.trigger IN ('catch_up', 'backfill')) = (lane.rank = 2)
      AND r.ready_at <= now() + make_interval(
              secs => CASE WHEN lane.rank = 2 THEN 0 ELSE %(place_lead_s)s END)
      AND r.status = 'queued'
      AND (r.deadline_at > now() OR r.deadline_at IS NULL OR r.failures + r.lease_losses > 0)
      AND CASE WHEN r.trigger IN ('catch_up', 'backfill') THEN 2
               WHEN r.failures > 0 THEN 1 ELSE 0 END = lane.rank
      AND (r.region, r.tier) IN (SELECT region, tier FROM served)
    ORDER BY r.ready_at, r.run_id
    LIMIT %(limit)s
) w
WHERE t.suspended_at IS NULL;

-- name: overdue_runs
-- Runs that wait past their deadline and have never begun: queued without a worker, or blocked.
-- (One that a worker holds is told at its go.) No lock: their guards come first.
-- Index: runs_active.
SELECT run_id, scheduled_for, job_id FROM runs
WHERE lease_owner IS NULL AND finished_at IS NULL AND deadline_at <= now()
  AND status IN ('queued', 'blocked') AND failures + lease_losses = 0
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
      AND r.status IN ('queued', 'blocked') AND r.failures + r.lease_losses = 0
    ORDER BY r.run_id
    FOR UPDATE OF r
)
UPDATE runs r
SET status = 'skipped', skip_reason = 'deadline', finished_at = clock_timestamp()
FROM late l
WHERE r.run_id = l.run_id AND r.scheduled_for = l.scheduled_for
RETURNING r.run_id, r.job_id;

-- name: held_by_tenant
-- Slots that each tenant occupies (its runs under way, placed ones whose time has come included),
-- and its runs that are placed ahead of their time.
-- Index: runs_active.
SELECT tenant_id,
       count(*) FILTER (WHERE status = 'running' OR ready_at <= now()) AS occupied,
       count(*) FILTER (WHERE status <> 'running' AND ready_at > now()) AS ahead
FROM runs
WHERE finished_at IS NULL AND lease_owner IS NOT NULL
GROUP BY tenant_id;

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
RETURNING r.run_id, r.scheduled_for, r.attempt, r.lease_owner AS session_id, r.tenant_id, r.job_id,
          extract(epoch FROM r.ready_at)::float8 AS ready_epoch,
          extract(epoch FROM r.ready_at - now())::float8 AS ready_in_s;
