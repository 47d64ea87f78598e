-- name: transaction_time
-- The database's clock, as this whole transaction has it.
SELECT now() AS now;

-- name: claim_due_cursors
-- Lock the due cursors that nobody else holds, oldest first, for this transaction. Instants as
-- texts, to be decoded once each.
-- A cursor set by newer zone data than this process has is left to those that have it: planned here
-- its occurrences would move back. Editions sort as text (2026f < 2026za < 2027a).
-- Guard: SKIP LOCKED, so that two planners never plan one job. LIMIT stands in a CTE: as a
-- subquery the planner may lock more rows than the limit.
-- Index: cursors_due.
WITH due AS MATERIALIZED (
    SELECT job_id, next_run_at, last_wall_time, tzdata
    FROM schedule_cursors
    WHERE next_run_at <= %(until)s::timestamptz
      AND (%(shards)s::int[] IS NULL OR shard = ANY(%(shards)s::int[]))
      AND tzdata COLLATE "C" <= %(tzdata)s
    ORDER BY next_run_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
SELECT job_id, next_run_at::text, last_wall_time, tzdata FROM due;

-- name: count_newer_cursors
-- The due cursors that this process leaves alone, because newer zone data set them.
-- Index: cursors_due.
SELECT count(*) AS jobs FROM schedule_cursors
WHERE next_run_at <= now() + make_interval(secs => %(look_ahead_s)s)
  AND (%(shards)s::int[] IS NULL OR shard = ANY(%(shards)s::int[]))
  AND tzdata COLLATE "C" > %(tzdata)s;

-- name: read_claimed_jobs
-- What the jobs of claimed cursors say now; texts as they are stored, to be decoded once each.
-- A statement of its own: an edit holds the cursor's lock while it writes the job, and the
-- snapshot of the claim may be older than that edit; joined into the claim, the planner would plan
-- the schedule from before the edit.
-- Index: primary key.
SELECT job_id, tenant_id, version, region, tier, schedule::text, dst::text, misfire::text,
       start_at::text, end_at::text, pause::text, enabled, deleted_at IS NOT NULL AS is_deleted
FROM jobs
WHERE job_id = ANY(%(job_ids)s::uuid[]);

-- name: read_cursor
-- Where one job's cursor stands; the caller holds its lock.
-- Index: primary key.
SELECT job_id, next_run_at::text, last_wall_time, tzdata FROM schedule_cursors
WHERE job_id = %(job_id)s;

-- name: copy_runs
-- Create the runs of claimed cursors, all or none: a row that exists already, or one that the
-- database refuses, fails it, and the caller falls back to insert_runs.
-- Index: run_occurrence_once.
COPY runs (run_id, scheduled_for, job_id, job_version, tenant_id, region, tier, trigger, status,
           due_at, ready_at, deadline_at, skip_reason, finished_at) FROM STDIN;

-- name: insert_runs
-- Create the runs of claimed cursors. A row that exists already is a named, normal outcome: the
-- unique key is the second net under the cursor's lock, and returns only what is new.
-- Index: run_occurrence_once.
INSERT INTO runs (run_id, scheduled_for, job_id, job_version, tenant_id, region, tier, trigger,
                  status, due_at, ready_at, deadline_at, skip_reason, finished_at)
SELECT u.run_id, u.scheduled_for, u.job_id, u.job_version, u.tenant_id, u.region, u.tier,
       u.trigger, u.status, u.due_at, u.ready_at, u.deadline_at, u.skip_reason,
       CASE WHEN u.status = 'skipped' THEN now() END
FROM unnest(
    %(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[], %(job_ids)s::uuid[],
    %(job_versions)s::int[], %(tenant_ids)s::uuid[], %(regions)s::text[], %(tiers)s::text[],
    %(triggers)s::text[], %(statuses)s::text[], %(due_ats)s::timestamptz[],
    %(ready_ats)s::timestamptz[], %(deadline_ats)s::timestamptz[], %(skip_reasons)s::text[]
) AS u(run_id, scheduled_for, job_id, job_version, tenant_id, region, tier, trigger, status,
       due_at, ready_at, deadline_at, skip_reason)
ON CONFLICT DO NOTHING;

-- name: paced_until
-- When the last caught-up or backfilled run that each job has waiting is let go: more of them go
-- behind it. Rows that are ready already count for nothing.
-- Index: run_occurrence_once (job_id).
SELECT job_id, max(ready_at) AS ready_at FROM runs
WHERE job_id = ANY(%(job_ids)s) AND trigger IN ('catch_up', 'backfill')
  AND finished_at IS NULL AND ready_at > now()
GROUP BY job_id;

-- name: insert_missed_spans
-- Record counted stretches of occurrences. A span that exists was written by an earlier try.
-- Index: missed_span_once.
INSERT INTO missed_spans (job_id, from_at, to_at, count, reason)
SELECT * FROM unnest(
    %(job_ids)s::uuid[], %(from_ats)s::timestamptz[], %(to_ats)s::timestamptz[],
    %(counts)s::int[], %(reasons)s::text[])
ON CONFLICT DO NOTHING;

-- name: advance_cursors
-- Move the claimed cursors on, each to one of a few places. Guard: this transaction holds their
-- locks, and planned_through only grows (GREATEST), so that nothing planned is ever planned again.
-- Index: primary key.
UPDATE schedule_cursors c
SET next_run_at = p.next_run_at,
    planned_through = GREATEST(c.planned_through, p.planned_through),
    last_wall_time = p.last_wall_time,
    tzdata = p.tzdata
FROM unnest(%(job_ids)s::uuid[], %(places)s::int[]) AS u(job_id, place)
JOIN unnest(
    %(next_run_ats)s::timestamptz[], %(planned_throughs)s::timestamptz[],
    %(last_wall_times)s::text[], %(tzdatas)s::text[]
) WITH ORDINALITY AS p(next_run_at, planned_through, last_wall_time, tzdata, place)
  ON p.place = u.place
WHERE c.job_id = u.job_id;

-- name: set_aside_job
-- Switch off a job that cannot be planned, and say why; its batch goes on without it.
-- Guard: this transaction holds the cursor's lock.
WITH off AS (
    UPDATE jobs
    SET enabled = false,
        pause = jsonb_build_object('reason', %(reason)s::text, 'by', 'planner'),
        version = version + 1,
        updated_at = now()
    WHERE job_id = %(job_id)s
    RETURNING *
), version_written AS (
    INSERT INTO job_versions (job_id, version, schedule, policies, task, enabled, deleted, tzdata,
                              effective_from, changed_by, cause)
    SELECT job_id, version, schedule, jsonb_build_object('pause', pause), task, false, false,
           %(tzdata)s, now(), 'planner', left(%(reason)s::text, 200)
    FROM off
)
UPDATE schedule_cursors SET next_run_at = NULL WHERE job_id = %(job_id)s;
