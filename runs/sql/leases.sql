-- name: lease_runs
-- Lease placed runs: each takes a new fence. Guard: queued, placed on this session, and the
-- session's own lease unexpired. A run missing from the answer was not leased.
-- Index: primary key (both columns, so that it prunes).
WITH wanted AS (
    SELECT r.run_id, r.scheduled_for
    FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[]) AS u(run_id, scheduled_for)
    JOIN runs r ON r.run_id = u.run_id AND r.scheduled_for = u.scheduled_for
    WHERE r.status = 'queued' AND r.lease_owner = %(session_id)s
      AND EXISTS (SELECT FROM worker_sessions s
                  WHERE s.session_id = %(session_id)s AND s.ended_at IS NULL AND NOT s.draining
                    AND s.lease_expires_at > now())
    ORDER BY r.run_id
    FOR UPDATE OF r
), leased AS (
    UPDATE runs r
    SET status = 'leased', fence = nextval('run_fence_seq'), leased_at = now(),
        prepared_at = NULL, go_at = NULL, started_at = NULL
    FROM wanted w
    WHERE r.run_id = w.run_id AND r.scheduled_for = w.scheduled_for
    RETURNING r.run_id, r.scheduled_for, r.job_id, r.tenant_id, r.tier, r.attempt, r.fence,
              r.ready_at, r.replay_of
)
SELECT l.run_id, l.scheduled_for, l.job_id, l.tenant_id, l.tier, l.attempt, l.fence, l.replay_of,
       extract(epoch FROM l.ready_at - now())::float8 AS ready_in_s,
       j.task, j.version AS task_version, t.allow_root
FROM leased l
JOIN jobs j ON j.job_id = l.job_id
JOIN tenants t ON t.tenant_id = l.tenant_id;

-- name: refused_runs
-- Why runs could not be leased: what their rows say.
SELECT r.run_id, r.status, r.lease_owner
FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[]) AS u(run_id, scheduled_for)
JOIN runs r ON r.run_id = u.run_id AND r.scheduled_for = u.scheduled_for;

-- name: ensure_guards
-- Make the guard rows of jobs whose runs must not overlap. In job order, as all locks on guards.
INSERT INTO job_guards (job_id, fence)
SELECT job_id, 0 FROM jobs WHERE job_id = ANY(%(job_ids)s) AND overlap <> 'allow'
ORDER BY job_id
ON CONFLICT DO NOTHING;

-- name: lock_guards
-- Lock the guards of jobs before their runs. A statement of its own: what is decided afterwards
-- must be read with a snapshot from after the wait, or a completion that crosses a block is lost
-- for ever (architecture §5).
SELECT job_id, holder_run_id FROM job_guards
WHERE job_id = ANY(%(job_ids)s)
ORDER BY job_id
FOR UPDATE;

-- name: lock_rivals
-- Where runs replace others: lock the guard's holder and all that wait behind it, together with the
-- runs that ask for their go, in run order, and return those that stand in the way. Guard: the
-- caller holds the guards, without which no run is blocked or unblocked. `is_running`: it may have
-- a container.
-- Index: primary key (both columns, so that it prunes); run_occurrence_once (job_id) for the blocked.
WITH replacing AS (
    SELECT u.job_id, u.holder_id, u.holder_time
    FROM unnest(%(job_ids)s::uuid[], %(holder_ids)s::uuid[], %(holder_times)s::timestamptz[])
         AS u(job_id, holder_id, holder_time)
    JOIN jobs j ON j.job_id = u.job_id
    WHERE j.overlap = 'replace'
), concerned AS MATERIALIZED (
    SELECT p.holder_id AS run_id, p.holder_time AS scheduled_for FROM replacing p
    UNION
    SELECT b.run_id, b.scheduled_for FROM replacing p
    JOIN runs b ON b.job_id = p.job_id AND b.status = 'blocked' AND b.finished_at IS NULL
    UNION
    SELECT * FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[])
    WHERE EXISTS (SELECT FROM replacing)
), locked AS MATERIALIZED (
    SELECT r.run_id, r.job_id, r.status, r.due_at, r.trigger, r.finished_at
    FROM concerned c
    JOIN runs r ON r.run_id = c.run_id AND r.scheduled_for = c.scheduled_for
    ORDER BY r.run_id
    FOR UPDATE OF r
)
SELECT l.run_id, l.job_id, l.due_at, l.trigger IN ('catch_up', 'backfill', 'replay') AS is_caught_up,
       l.status = 'running' AS is_running
FROM locked l
JOIN replacing p ON p.job_id = l.job_id
WHERE l.finished_at IS NULL AND (l.status = 'blocked' OR l.run_id = p.holder_id);

-- name: replace_runs
-- Make room for newer runs. What runs is asked to stop, as by a cancel; what has no container is
-- over: cancelled when it had begun (it waits for its next attempt), else skipped.
-- Guard: not over. The caller holds guards and rows.
-- Index: primary key (both columns, so that it prunes).
UPDATE runs r
SET status = f.status, replaced_by = u.replaced_by,
    skip_reason = CASE WHEN f.status = 'skipped' THEN 'replaced' ELSE '' END,
    outcome = CASE WHEN f.status = 'cancelled' THEN 'cancelled' ELSE r.outcome END,
    cancel_requested_at = CASE WHEN f.status = 'skipped' THEN r.cancel_requested_at
                          ELSE COALESCE(r.cancel_requested_at, clock_timestamp()) END,
    finished_at = CASE WHEN f.status <> 'running' THEN clock_timestamp() END,
    lease_owner = CASE WHEN f.status = 'running' THEN r.lease_owner END
FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[], %(replaced_bys)s::uuid[])
     AS u(run_id, scheduled_for, replaced_by)
JOIN runs o ON o.run_id = u.run_id AND o.scheduled_for = u.scheduled_for
CROSS JOIN LATERAL (
    SELECT CASE WHEN o.status = 'running' THEN 'running'
                WHEN o.attempt > 1 THEN 'cancelled' ELSE 'skipped' END AS status
) f
WHERE r.run_id = u.run_id AND r.scheduled_for = u.scheduled_for AND r.finished_at IS NULL
RETURNING r.run_id, r.scheduled_for, r.job_id, r.status, r.finished_at;

-- name: read_runs_for_go
-- Lock the runs that ask for their go and read what the decision needs. A job of another version
-- whose task is still the one that was prepared for (a label was changed, say) may go as it is.
-- Index: primary key (both columns, so that it prunes).
SELECT r.run_id, r.scheduled_for, r.job_id, r.status, r.fence, r.lease_owner, r.attempt,
       extract(epoch FROM r.ready_at - clock_timestamp())::float8 AS ready_in_s,
       r.due_at, j.overlap, j.queue_limit, j.version AS task_version,
       (j.version = u.task_version
        OR j.task = (SELECT v.task FROM job_versions v
                     WHERE v.job_id = j.job_id AND v.version = u.task_version)
       ) IS TRUE AS is_same_task,
       r.trigger IN ('catch_up', 'backfill', 'replay') AS is_caught_up,
       coalesce(r.deadline_at <= clock_timestamp(), false)
           AND r.attempt = 1 AS is_too_late,
       j.deleted_at IS NOT NULL AS job_is_deleted,
       (SELECT count(*) FROM runs b
        WHERE b.job_id = r.job_id AND b.status = 'blocked' AND b.finished_at IS NULL
          AND b.trigger NOT IN ('catch_up', 'backfill', 'replay') AND j.overlap = 'queue') AS blocked,
       EXISTS (SELECT FROM worker_sessions s
               WHERE s.session_id = %(session_id)s AND s.ended_at IS NULL
                 AND s.lease_expires_at > clock_timestamp()) AS session_is_live
FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[], %(task_versions)s::int[])
     AS u(run_id, scheduled_for, task_version)
JOIN runs r ON r.run_id = u.run_id AND r.scheduled_for = u.scheduled_for
JOIN jobs j ON j.job_id = r.job_id
ORDER BY r.run_id
FOR UPDATE OF r;

-- name: go_runs
-- Let runs go and write their attempts. The caller holds guards and rows and has decided.
WITH gone AS (
    UPDATE runs r
    SET status = 'running', go_at = clock_timestamp(),
        prepared_at = clock_timestamp() - make_interval(secs => u.prepared_ago_s),
        job_version = u.task_version
    FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[],
                %(prepared_agos_s)s::float8[], %(task_versions)s::int[])
         AS u(run_id, scheduled_for, prepared_ago_s, task_version)
    WHERE r.run_id = u.run_id AND r.scheduled_for = u.scheduled_for AND r.status = 'leased'
    RETURNING r.*
)
INSERT INTO run_attempts (run_id, scheduled_for, attempt, fence, session_id, node, placed_at,
                          leased_at, prepared_at, go_at)
SELECT run_id, scheduled_for, attempt, fence, lease_owner, %(node)s, placed_at, leased_at,
       prepared_at, go_at
FROM gone;

-- name: take_guards
-- Give guards to the runs that go. The caller holds the guards' locks.
UPDATE job_guards g SET holder_run_id = u.run_id, fence = u.fence
FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[], %(fences)s::bigint[]) AS u(job_id, run_id, fence)
WHERE g.job_id = u.job_id;

-- name: block_runs
-- Let runs wait for their predecessor: they drop lease, container and slot.
UPDATE runs r SET status = 'blocked', lease_owner = NULL, placed_at = NULL
FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[]) AS u(run_id, scheduled_for)
WHERE r.run_id = u.run_id AND r.scheduled_for = u.scheduled_for AND r.status = 'leased';

-- name: skip_runs
-- Finish leased runs that may not run, with the reason.
UPDATE runs r
SET status = 'skipped', skip_reason = u.reason, replaced_by = u.replaced_by,
    finished_at = clock_timestamp(), lease_owner = NULL
FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[], %(reasons)s::text[],
            %(replaced_bys)s::uuid[]) AS u(run_id, scheduled_for, reason, replaced_by)
WHERE r.run_id = u.run_id AND r.scheduled_for = u.scheduled_for AND r.status = 'leased';

-- name: record_starts
-- Note when the engine started containers. Guard: running under this fence and session, and not
-- noted yet. `lag_s` is null but for the run's first start (a backfill has none).
-- Locked in run order, as everywhere: completions of the same runs come at the same moment.
WITH ours AS (
    SELECT r.run_id, r.scheduled_for, u.started_at
    FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[], %(fences)s::bigint[],
                %(started_ats)s::timestamptz[]) AS u(run_id, scheduled_for, fence, started_at)
    JOIN runs r ON r.run_id = u.run_id AND r.scheduled_for = u.scheduled_for
    WHERE r.status = 'running' AND r.fence = u.fence AND r.lease_owner = %(session_id)s
      AND r.started_at IS NULL
    ORDER BY r.run_id
    FOR UPDATE OF r
), started AS (
    UPDATE runs r SET started_at = o.started_at
    FROM ours o
    WHERE r.run_id = o.run_id AND r.scheduled_for = o.scheduled_for
    RETURNING r.run_id, r.scheduled_for, r.attempt, o.started_at, r.due_at, r.trigger, r.region,
              r.tier, r.tenant_id
)
UPDATE run_attempts a SET started_at = s.started_at
FROM started s
WHERE a.run_id = s.run_id AND a.scheduled_for = s.scheduled_for AND a.attempt = s.attempt
RETURNING s.region, s.tier, s.run_id, s.scheduled_for,
    (SELECT count(*) FROM webhook_endpoints w
     WHERE w.tenant_id = s.tenant_id AND w.enabled AND 'run.late' = ANY(w.events)) > 0 AS is_heard,
    CASE WHEN s.trigger <> 'backfill' AND (s.attempt = 1 OR NOT EXISTS (
             SELECT FROM run_attempts e
             WHERE e.run_id = s.run_id AND e.scheduled_for = s.scheduled_for
               AND e.attempt < s.attempt AND e.started_at IS NOT NULL))
         THEN extract(epoch FROM s.started_at - s.due_at)::float8 END AS lag_s;

-- name: open_session
-- Register one life of a worker process.
INSERT INTO worker_sessions (session_id, node, celery_name, pid, queue, region, tiers, slots,
                             prepared_limit, started_at, last_seen_at, lease_expires_at,
                             accepting, not_accepting_reason, draining, cordoned)
VALUES (%(session_id)s, %(node)s, %(celery_name)s, %(pid)s, %(queue)s, %(region)s, %(tiers)s,
        %(slots)s, %(prepared_limit)s, now(), now(), now() + make_interval(secs => %(lease_s)s),
        %(accepting)s, '', false, false);

-- name: renew_session
-- Extend the session's lease, and with it that of all its runs. Guard: it has not ended and its
-- lease has not run out: an old life must not renew itself once others may have taken its runs.
-- No row: the lease is lost.
UPDATE worker_sessions
SET lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_s)s),
    last_seen_at = clock_timestamp(),
    accepting = %(accepting)s, not_accepting_reason = %(reason)s
WHERE session_id = %(session_id)s AND ended_at IS NULL AND lease_expires_at > clock_timestamp()
RETURNING draining;

-- name: see_session
-- Say that the worker is there, without extending any lease.
UPDATE worker_sessions
SET last_seen_at = clock_timestamp(), accepting = %(accepting)s, not_accepting_reason = %(reason)s
WHERE session_id = %(session_id)s AND ended_at IS NULL AND lease_expires_at > clock_timestamp()
RETURNING draining;

-- name: drain_session
UPDATE worker_sessions SET draining = true WHERE session_id = %(session_id)s;

-- name: put_back_unstarted
-- Put what an ending session has not started back into the fair queue.
-- Index: runs_active.
WITH unstarted AS (
    SELECT run_id, scheduled_for FROM runs
    WHERE lease_owner = %(session_id)s AND finished_at IS NULL AND status IN ('queued', 'leased')
    ORDER BY run_id
    FOR UPDATE
)
UPDATE runs r
SET status = 'queued', lease_owner = NULL, placed_at = NULL, leased_at = NULL,
    fence = nextval('run_fence_seq')
FROM unstarted u
WHERE r.run_id = u.run_id AND r.scheduled_for = u.scheduled_for;

-- name: end_session
-- Guard: only when it holds no run, placed ones included; otherwise the reaper takes these first.
UPDATE worker_sessions s SET ended_at = now()
WHERE s.session_id = %(session_id)s AND s.ended_at IS NULL
  AND NOT EXISTS (SELECT FROM runs r WHERE r.lease_owner = s.session_id AND r.finished_at IS NULL);

-- name: runs_of_session
-- All that a session owns: placed, leased and running.
-- Index: runs_active.
SELECT run_id, scheduled_for, job_id, status, fence, attempt,
       cancel_requested_at IS NOT NULL AS cancel_requested,
       extract(epoch FROM ready_at - now())::float8 AS ready_in_s,
       coalesce(extract(epoch FROM now() - placed_at)::float8, 'infinity') AS placed_ago_s
FROM runs
WHERE lease_owner = %(session_id)s AND finished_at IS NULL;

-- name: hand_back_runs
-- Put leased runs back into the fair queue. Guard: leased under this fence and session.
-- Index: primary key (both columns, so that it prunes).
WITH ours AS (
    SELECT r.run_id, r.scheduled_for
    FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[], %(fences)s::bigint[])
         AS u(run_id, scheduled_for, fence)
    JOIN runs r ON r.run_id = u.run_id AND r.scheduled_for = u.scheduled_for
    WHERE r.status = 'leased' AND r.fence = u.fence AND r.lease_owner = %(session_id)s
    ORDER BY r.run_id
    FOR UPDATE OF r
)
UPDATE runs r
SET status = 'queued', lease_owner = NULL, placed_at = NULL, leased_at = NULL
FROM ours o
WHERE r.run_id = o.run_id AND r.scheduled_for = o.scheduled_for
RETURNING r.run_id;

-- name: read_runs_for_completion
-- Lock the runs whose end is reported and read what the decision needs.
-- Index: primary key (both columns, so that it prunes).
SELECT r.run_id, r.scheduled_for, r.job_id, r.tenant_id, r.status, r.fence, r.lease_owner,
       r.attempt, r.failures, r.lease_losses, r.go_at,
       r.cancel_requested_at IS NOT NULL AS cancel_requested, j.retry,
       j.deleted_at IS NOT NULL AS job_is_deleted, r.started_at, r.region, r.tier,
       -- Whether its end may be owed to somebody: the outbox costs the rest nothing. Counted, for
       -- EXISTS may read the whole table for a tenant that has none.
       (j.auto_pause_after IS NOT NULL
        OR (SELECT count(*) FROM webhook_endpoints w
            WHERE w.tenant_id = r.tenant_id AND w.enabled) > 0) AS is_heard,
       -- Due time of a run whose first start has not been noted: from it the lag is counted.
       CASE WHEN r.started_at IS NULL AND r.trigger <> 'backfill'
                 AND (r.attempt = 1 OR NOT EXISTS (
                     SELECT FROM run_attempts e
                     WHERE e.run_id = r.run_id AND e.scheduled_for = r.scheduled_for
                       AND e.attempt < r.attempt AND e.started_at IS NOT NULL))
            THEN r.due_at END AS first_due_at,
       (SELECT a.ended_at IS NOT NULL FROM run_attempts a
        WHERE a.run_id = r.run_id AND a.scheduled_for = r.scheduled_for AND a.fence = u.fence
       ) AS attempt_has_ended
FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[], %(fences)s::bigint[])
     AS u(run_id, scheduled_for, fence)
JOIN runs r ON r.run_id = u.run_id AND r.scheduled_for = u.scheduled_for
JOIN jobs j ON j.job_id = r.job_id
ORDER BY r.run_id
FOR UPDATE OF r;

-- name: complete_runs
-- Write what follows an attempt. Guard (again, beside the lock): fence, session and status.
UPDATE runs r
SET status = u.status,
    attempt = r.attempt + u.attempt_step,
    failures = r.failures + u.failure_step,
    lease_losses = r.lease_losses + u.loss_step,
    -- Never earlier than it was: an attempt may fail while it is prepared, ahead of its time.
    ready_at = CASE WHEN u.status = 'queued'
                    THEN GREATEST(r.ready_at, clock_timestamp() + make_interval(secs => u.wait_s))
                    ELSE r.ready_at END,
    lease_owner = NULL,
    placed_at = CASE WHEN u.status = 'queued' THEN NULL ELSE r.placed_at END,
    started_at = COALESCE(u.started_at, r.started_at),
    finished_at = CASE WHEN u.status = 'queued' THEN NULL ELSE clock_timestamp() END,
    outcome = u.outcome,
    exit_code = u.exit_code
FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[], %(fences)s::bigint[],
            %(statuses)s::text[], %(attempt_steps)s::smallint[], %(failure_steps)s::smallint[],
            %(loss_steps)s::smallint[], %(waits_s)s::float8[], %(started_ats)s::timestamptz[], %(outcomes)s::text[],
            %(exit_codes)s::int[])
     AS u(run_id, scheduled_for, fence, status, attempt_step, failure_step, loss_step, wait_s,
          started_at, outcome, exit_code)
WHERE r.run_id = u.run_id AND r.scheduled_for = u.scheduled_for AND r.fence = u.fence
  AND r.lease_owner = %(session_id)s AND r.status IN ('leased', 'running')
RETURNING r.run_id;

-- name: end_attempts
-- Write how attempts ended. An attempt whose container could not be made had no go and no row yet.
INSERT INTO run_attempts AS a (run_id, scheduled_for, attempt, fence, session_id, node,
                               started_at, finished_at, ended_at, outcome, exit_code, message,
                               image_digest)
SELECT u.run_id, u.scheduled_for, u.attempt, u.fence, %(session_id)s, %(node)s, u.started_at,
       u.finished_at, clock_timestamp(), u.outcome, u.exit_code, u.message, u.image_digest
FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[], %(attempts)s::smallint[],
            %(fences)s::bigint[], %(started_ats)s::timestamptz[], %(finished_ats)s::timestamptz[],
            %(outcomes)s::text[], %(exit_codes)s::int[], %(messages)s::text[],
            %(image_digests)s::text[])
     AS u(run_id, scheduled_for, attempt, fence, started_at, finished_at, outcome, exit_code,
          message, image_digest)
ON CONFLICT (run_id, scheduled_for, attempt) DO UPDATE
SET started_at = COALESCE(EXCLUDED.started_at, a.started_at), finished_at = EXCLUDED.finished_at,
    ended_at = EXCLUDED.ended_at, outcome = EXCLUDED.outcome, exit_code = EXCLUDED.exit_code,
    message = EXCLUDED.message, image_digest = EXCLUDED.image_digest
WHERE a.fence = EXCLUDED.fence;

-- name: insert_outputs
INSERT INTO run_outputs (run_id, scheduled_for, attempt, tail, truncated)
SELECT * FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[],
                     %(attempts)s::smallint[], %(tails)s::bytea[], %(truncateds)s::bool[])
ON CONFLICT DO NOTHING;

-- name: pass_guards
-- Release the guards of runs that are over and pass each to the next blocked run of its job, which
-- goes back to the queue as the guard's holder. In order of their time; where runs replace others
-- what is caught up goes last, for it would only be replaced by the live one behind it.
-- Guard: only where the holder is the given run. The caller holds the guards' locks. One statement,
-- called by every way out.
WITH released AS (
    SELECT g.job_id, next.run_id AS next_run_id, next.scheduled_for AS next_scheduled_for
    FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[]) AS u(job_id, run_id)
    JOIN job_guards g ON g.job_id = u.job_id AND g.holder_run_id = u.run_id
    LEFT JOIN jobs j ON j.job_id = u.job_id
    LEFT JOIN LATERAL (
        SELECT b.run_id, b.scheduled_for FROM runs b
        WHERE b.job_id = u.job_id AND b.status = 'blocked' AND b.finished_at IS NULL
        ORDER BY j.overlap = 'replace' AND b.trigger IN ('catch_up', 'backfill', 'replay'),
                 b.due_at, b.run_id
        LIMIT 1
    ) next ON true
), passed AS (
    UPDATE job_guards g SET holder_run_id = r.next_run_id
    FROM released r WHERE g.job_id = r.job_id
)
UPDATE runs n SET status = 'queued', ready_at = clock_timestamp()
FROM released r
WHERE n.run_id = r.next_run_id AND n.scheduled_for = r.next_scheduled_for AND n.status = 'blocked'
RETURNING n.run_id;

-- name: insert_events
INSERT INTO run_events (run_id, scheduled_for, kind, attempt, fence, session_id, detail)
SELECT * FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[], %(kinds)s::text[],
                     %(attempts)s::smallint[], %(fences)s::bigint[], %(sessions)s::uuid[],
                     %(details)s::jsonb[]);
