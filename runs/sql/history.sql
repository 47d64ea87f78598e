-- name: history_window
-- What bounds a check: now, the oldest day with a partition, the fences drawn so far.
SELECT now() AS now, (SELECT last_value FROM run_fence_seq) AS last_fence;

-- name: history_jobs
-- Every job with its versions, its counted spans and its cursor, in order of id: what history is
-- checked against.
-- Index: primary keys, job_version_once, missed_span_once.
SELECT j.job_id, c.job_id IS NOT NULL AS has_cursor, c.next_run_at, c.planned_through,
       g.holder_run_id, holder.job_id AS holder_job_id, holder.status AS holder_status,
       COALESCE((SELECT jsonb_agg(jsonb_build_object(
                    'version', v.version, 'effective_from', v.effective_from,
                    'schedule', v.schedule, 'policies', v.policies, 'enabled', v.enabled,
                    'deleted', v.deleted, 'tzdata', v.tzdata) ORDER BY v.version)
                 FROM job_versions v WHERE v.job_id = j.job_id), '[]') AS versions,
       COALESCE((SELECT jsonb_agg(jsonb_build_object(
                    'first', s.from_at, 'last', s.to_at, 'count', s.count, 'reason', s.reason))
                 FROM missed_spans s
                 WHERE s.job_id = j.job_id
                   AND s.to_at >= %(since)s AND s.from_at <= %(until)s), '[]') AS spans
FROM jobs j
LEFT JOIN schedule_cursors c ON c.job_id = j.job_id
LEFT JOIN job_guards g ON g.job_id = j.job_id
LEFT JOIN LATERAL (SELECT r.job_id, r.status FROM runs r WHERE r.run_id = g.holder_run_id) holder
       ON true
WHERE (%(tenant)s::uuid IS NULL OR j.tenant_id = %(tenant)s)
  AND (%(job)s::uuid IS NULL OR j.job_id = %(job)s)
ORDER BY j.job_id;

-- name: history_runs
-- Every run with its attempts, of one job after the other, in order of time.
-- Index: run_occurrence_once (job_id, scheduled_for), merged over the partitions.
SELECT r.job_id, r.run_id, r.scheduled_for, r.trigger, r.status, r.due_at, r.ready_at,
       r.attempt, r.failures, r.lease_losses, r.lease_owner, r.fence, r.finished_at,
       r.cancel_requested_at, r.skip_reason, r.outcome, r.exit_code,
       a.attempt AS a_attempt, a.fence AS a_fence, a.node AS a_node, a.go_at AS a_go_at,
       a.started_at AS a_started_at, a.finished_at AS a_finished_at, a.ended_at AS a_ended_at,
       a.outcome AS a_outcome, a.exit_code AS a_exit_code
FROM runs r
LEFT JOIN run_attempts a ON a.run_id = r.run_id AND a.scheduled_for = r.scheduled_for
WHERE r.scheduled_for > %(since)s AND r.scheduled_for <= %(until)s
  AND (%(tenant)s::uuid IS NULL OR r.tenant_id = %(tenant)s)
  AND (%(job)s::uuid IS NULL OR r.job_id = %(job)s)
ORDER BY r.job_id, r.scheduled_for, r.run_id, a.attempt;

-- name: history_moves
-- Goes, and skips because of an earlier run, of jobs whose runs must not overlap, in order of time.
SELECT m.* FROM (
    SELECT r.job_id, r.run_id, a.go_at AS at, r.finished_at AS run_ended_at,
           a.attempt AS a_attempt, a.fence AS a_fence, a.node AS a_node, a.go_at AS a_go_at,
           a.started_at AS a_started_at, a.finished_at AS a_finished_at,
           a.ended_at AS a_ended_at, a.outcome AS a_outcome, a.exit_code AS a_exit_code
    FROM run_attempts a
    JOIN runs r ON r.run_id = a.run_id AND r.scheduled_for = a.scheduled_for
    WHERE a.go_at IS NOT NULL AND r.scheduled_for > %(since)s AND r.scheduled_for <= %(until)s
      AND (%(tenant)s::uuid IS NULL OR r.tenant_id = %(tenant)s)
      AND (%(job)s::uuid IS NULL OR r.job_id = %(job)s)
    UNION ALL
    SELECT r.job_id, r.run_id, r.finished_at, r.finished_at,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM runs r
    WHERE r.status = 'skipped' AND r.skip_reason = 'overlap' AND r.finished_at IS NOT NULL
      AND r.scheduled_for > %(since)s AND r.scheduled_for <= %(until)s
      AND (%(tenant)s::uuid IS NULL OR r.tenant_id = %(tenant)s)
      AND (%(job)s::uuid IS NULL OR r.job_id = %(job)s)
) m
WHERE EXISTS (SELECT FROM job_versions v
              WHERE v.job_id = m.job_id AND v.policies ->> 'overlap' IS DISTINCT FROM 'allow')
ORDER BY m.job_id, m.at, m.run_id;

-- name: history_fences
-- Fences that belong to more than one lease, or that the sequence has not drawn yet. An attempt's
-- fence is also its run's until the next lease: that is one lease.
WITH used AS (
    SELECT a.fence, a.run_id, a.attempt FROM run_attempts a
    WHERE a.scheduled_for > %(since)s AND a.scheduled_for <= %(until)s
    UNION ALL
    SELECT r.fence, r.run_id, NULL FROM runs r
    WHERE r.fence > 0 AND r.scheduled_for > %(since)s AND r.scheduled_for <= %(until)s
)
SELECT u.fence, array_agg(DISTINCT u.run_id) AS run_ids, count(u.attempt) AS attempts
FROM used u
GROUP BY u.fence
HAVING count(DISTINCT u.run_id) > 1 OR count(u.attempt) > 1 OR u.fence > %(last_fence)s
ORDER BY u.fence;

-- name: history_guards
-- Runs that a guard should account for and does not: one that runs without holding its job's
-- guard, one that is blocked behind nobody.
-- Index: runs_active (only runs that are not over).
SELECT r.job_id, r.run_id, r.status, a.go_at
FROM runs r
LEFT JOIN job_guards g ON g.job_id = r.job_id
LEFT JOIN run_attempts a ON a.run_id = r.run_id AND a.scheduled_for = r.scheduled_for
                        AND a.attempt = r.attempt
WHERE r.finished_at IS NULL
  AND (r.status = 'running' AND g.holder_run_id IS DISTINCT FROM r.run_id
       OR r.status = 'blocked' AND g.holder_run_id IS NULL)
  AND (%(tenant)s::uuid IS NULL OR r.tenant_id = %(tenant)s)
  AND (%(job)s::uuid IS NULL OR r.job_id = %(job)s)
ORDER BY r.job_id, r.run_id;
