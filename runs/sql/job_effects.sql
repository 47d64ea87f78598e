-- name: withdraw_planned
-- Delete planned occurrences that are ahead of their time. Deleted, not marked: editing and
-- editing back must not meet the unique key. A worker that prepared one is refused at its go.
-- Guard: the caller holds the cursor's lock, so no planner makes new ones meanwhile.
-- `now` is the edit's, read from the clock after that lock was waited for: an occurrence whose time
-- came meanwhile is late work of the job as it was, and stays.
-- Index: run_occurrence_once (job_id, scheduled_for).
WITH planned AS (
    SELECT run_id, scheduled_for FROM runs
    WHERE job_id = %(job_id)s AND scheduled_for > %(now)s AND trigger = 'schedule'
      AND failures = 0 AND lease_losses = 0 AND status IN ('queued', 'leased')
    ORDER BY run_id
    FOR UPDATE
)
DELETE FROM runs r USING planned p
WHERE r.run_id = p.run_id AND r.scheduled_for = p.scheduled_for;

-- name: stop_waiting
-- Finish the runs of a paused or deleted job that wait past their time. Runs made by hand, and
-- replays, stay on a pause: it stops the schedule, not the customer's own hand.
-- Index: run_occurrence_once (job_id).
WITH waiting AS (
    SELECT run_id, scheduled_for FROM runs
    WHERE job_id = %(job_id)s AND finished_at IS NULL
      AND status IN ('queued', 'leased', 'blocked')
      AND (trigger NOT IN ('manual', 'replay') OR %(status)s = 'cancelled')
    ORDER BY run_id
    FOR UPDATE
)
UPDATE runs r
SET status = %(status)s, skip_reason = CASE WHEN %(status)s = 'skipped' THEN %(reason)s ELSE '' END,
    outcome = CASE WHEN %(status)s = 'cancelled' THEN %(reason)s ELSE '' END,
    finished_at = now(), lease_owner = NULL
FROM waiting w
WHERE r.run_id = w.run_id AND r.scheduled_for = w.scheduled_for
RETURNING r.run_id, r.scheduled_for;

-- name: set_deadline
-- Give the occurrences of a job that wait another deadline (null: none). By hand and backfilled
-- ones have none.
-- Index: run_occurrence_once (job_id).
WITH waiting AS (
    SELECT run_id, scheduled_for FROM runs
    WHERE job_id = %(job_id)s AND finished_at IS NULL AND status IN ('queued', 'leased', 'blocked')
      AND trigger IN ('schedule', 'catch_up')
    ORDER BY run_id
    FOR UPDATE
)
UPDATE runs r SET deadline_at = r.due_at + make_interval(secs => %(deadline_s)s::float8)
FROM waiting w
WHERE r.run_id = w.run_id AND r.scheduled_for = w.scheduled_for;

-- name: request_cancel_running
-- Index: run_occurrence_once (job_id).
WITH running AS (
    SELECT run_id, scheduled_for FROM runs
    WHERE job_id = %(job_id)s AND finished_at IS NULL AND status = 'running'
      AND cancel_requested_at IS NULL
    ORDER BY run_id
    FOR UPDATE
)
UPDATE runs r SET cancel_requested_at = now()
FROM running a
WHERE r.run_id = a.run_id AND r.scheduled_for = a.scheduled_for;

-- name: planned_ahead
-- What withdraw_planned would delete.
-- Index: run_occurrence_once (job_id, scheduled_for).
SELECT job_id, array_agg(scheduled_for ORDER BY scheduled_for) AS instants FROM runs
WHERE job_id = ANY(%(job_ids)s) AND scheduled_for > %(now)s AND trigger = 'schedule'
  AND failures = 0 AND lease_losses = 0 AND status IN ('queued', 'leased')
GROUP BY job_id;

-- name: latest_occurrences
-- Index: run_occurrence_once (job_id, scheduled_for).
SELECT job_id, max(scheduled_for) AS scheduled_for FROM runs
WHERE job_id = ANY(%(job_ids)s) AND scheduled_for BETWEEN %(since)s AND %(until)s
  AND trigger IN ('schedule', 'catch_up')
GROUP BY job_id;

-- name: next_planned
-- Index: run_occurrence_once (job_id, scheduled_for).
SELECT job_id, min(scheduled_for) AS scheduled_for FROM runs
WHERE job_id = ANY(%(job_ids)s) AND scheduled_for > now() AND trigger = 'schedule'
  AND status IN ('queued', 'leased')
GROUP BY job_id;
