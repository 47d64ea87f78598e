-- name: dead_sessions
-- Sessions whose lease ended long enough ago, locked for this transaction.
-- Guard: nothing is reaped until a lease time after the database came back: while it was away no
-- worker could renew, and all of them would look dead.
-- Index: sessions_live.
SELECT session_id FROM worker_sessions
WHERE ended_at IS NULL
  AND lease_expires_at < now() - make_interval(secs => %(reap_after_s)s)
  AND pg_postmaster_start_time() < now() - make_interval(secs => %(lease_s)s)
ORDER BY session_id
FOR UPDATE SKIP LOCKED;

-- name: lost_owners
-- Sessions that are ended or unknown and yet own running runs: a go whose answer was cut off may
-- commit after its session's end. Nobody renews these, so they need no lock.
-- Index: runs_active, primary key of worker_sessions.
SELECT DISTINCT r.lease_owner AS session_id FROM runs r
LEFT JOIN worker_sessions s ON s.session_id = r.lease_owner
WHERE r.lease_owner IS NOT NULL AND r.finished_at IS NULL AND r.status = 'running'
  AND (s.session_id IS NULL
       OR (s.ended_at IS NOT NULL
           AND s.lease_expires_at < now() - make_interval(secs => %(reap_after_s)s)));

-- name: jobs_of_sessions
-- Jobs of the running runs of sessions: their guards are locked before the runs.
-- Index: runs_active.
SELECT DISTINCT job_id FROM runs
WHERE lease_owner = ANY(%(session_ids)s) AND finished_at IS NULL AND status = 'running';

-- name: reap_running
-- Take the running runs of dead sessions: queued again with a new fence, so that no write of the
-- old attempt is accepted; dead letters after too many losses; cancelled where that was asked.
-- Index: runs_active.
WITH dead AS (
    SELECT run_id, scheduled_for, attempt, fence, lease_owner, lease_losses + 1 AS losses,
           cancel_requested_at IS NOT NULL AS cancel_requested
    FROM runs
    WHERE lease_owner = ANY(%(session_ids)s) AND finished_at IS NULL AND status = 'running'
    ORDER BY run_id
    FOR UPDATE
), reaped AS (
    UPDATE runs r
    SET status = CASE WHEN d.cancel_requested THEN 'cancelled'
                      WHEN d.losses >= %(max_lease_losses)s THEN 'failed' ELSE 'queued' END,
        lease_losses = d.losses,
        attempt = r.attempt + CASE WHEN d.cancel_requested OR d.losses >= %(max_lease_losses)s
                                   THEN 0 ELSE 1 END,
        fence = nextval('run_fence_seq'), lease_owner = NULL,
        placed_at = NULL,
        ready_at = CASE WHEN d.cancel_requested OR d.losses >= %(max_lease_losses)s
                        THEN r.ready_at ELSE now() END,
        outcome = 'lease_expired',
        finished_at = CASE WHEN d.cancel_requested OR d.losses >= %(max_lease_losses)s
                           THEN now() END
    FROM dead d
    WHERE r.run_id = d.run_id AND r.scheduled_for = d.scheduled_for
    RETURNING r.run_id, r.scheduled_for, r.job_id, r.status, d.attempt AS lost_attempt,
              d.fence AS lost_fence, d.lease_owner AS lost_session
), attempts_ended AS (
    UPDATE run_attempts a SET ended_at = now(), outcome = 'lease_expired'
    FROM reaped r
    WHERE a.run_id = r.run_id AND a.scheduled_for = r.scheduled_for
      AND a.attempt = r.lost_attempt AND a.fence = r.lost_fence
)
SELECT * FROM reaped;

-- name: requeue_unstarted
-- Take the runs that have not started and whose session is not there for them: silent, draining,
-- dead, ended or unknown. They must not wait for the lease, because a new fence refuses a late lease
-- or go. Asked from the runs' side: a session that ends while the dispatcher places a run on it
-- leaves that run with an owner that no list of living sessions names.
-- Index: runs_active, primary key of worker_sessions.
WITH unstarted AS (
    SELECT r.run_id, r.scheduled_for, r.lease_owner
    FROM runs r
    WHERE r.lease_owner IS NOT NULL AND r.finished_at IS NULL AND r.status IN ('queued', 'leased')
      AND NOT EXISTS (SELECT FROM worker_sessions s
                      WHERE s.session_id = r.lease_owner AND s.ended_at IS NULL AND NOT s.draining
                        AND s.lease_expires_at >= now()
                        AND s.last_seen_at >= now() - make_interval(secs => %(silent_s)s))
    FOR UPDATE OF r SKIP LOCKED
)
UPDATE runs r
SET status = 'queued', lease_owner = NULL, placed_at = NULL, leased_at = NULL,
    fence = nextval('run_fence_seq')
FROM unstarted u
WHERE r.run_id = u.run_id AND r.scheduled_for = u.scheduled_for
RETURNING r.run_id, r.scheduled_for, r.attempt, r.fence, u.lease_owner AS lost_session;

-- name: end_sessions
-- Close the books of reaped sessions.
UPDATE worker_sessions SET ended_at = now()
WHERE session_id = ANY(%(session_ids)s) AND ended_at IS NULL
  AND NOT EXISTS (SELECT FROM runs r
                  WHERE r.lease_owner = worker_sessions.session_id AND r.finished_at IS NULL)
RETURNING queue;

-- name: lock_stale_guards
-- Lock guards whose holder seems to be final or gone: a second net under pass_guards.
WITH stale AS (
    SELECT g.job_id FROM job_guards g
    WHERE g.holder_run_id IS NOT NULL
      AND NOT EXISTS (SELECT FROM runs r WHERE r.run_id = g.holder_run_id AND r.job_id = g.job_id
                      AND r.finished_at IS NULL)
    ORDER BY g.job_id
    LIMIT 500
)
SELECT g.job_id FROM job_guards g JOIN stale s ON s.job_id = g.job_id
ORDER BY g.job_id
FOR UPDATE OF g SKIP LOCKED;

-- name: stale_guards
-- Which of the locked guards are stale. A statement of its own: a run that took its guard while
-- the first was on its way is newer than that one's snapshot, and would look as if it were gone.
SELECT g.job_id, g.holder_run_id FROM job_guards g
WHERE g.job_id = ANY(%(job_ids)s) AND g.holder_run_id IS NOT NULL
  AND NOT EXISTS (SELECT FROM runs r WHERE r.run_id = g.holder_run_id AND r.job_id = g.job_id
                  AND r.finished_at IS NULL);
