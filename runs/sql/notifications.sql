-- name: note_run_ends
-- Owe the tenants word of runs that became final in this transaction: a row for each whose tenant
-- has an endpoint that wants it, and one to ourselves for each failed run of a job that counts its
-- failures. One statement for a batch; runs that nobody wants to hear of cost a look at a small table.
-- Index: primary key of runs (both columns, so that it prunes), webhooks_by_tenant.
INSERT INTO outbox (tenant_id, event, run_id, job_id, payload)
SELECT r.tenant_id, e.event, r.run_id, r.job_id,
       jsonb_strip_nulls(jsonb_build_object(
           'run_id', r.run_id, 'job_id', r.job_id, 'job_version', r.job_version,
           'status', r.status, 'trigger', r.trigger, 'scheduled_for', r.scheduled_for,
           'due_at', r.due_at, 'attempt', r.attempt, 'started_at', r.started_at,
           'finished_at', r.finished_at, 'outcome', NULLIF(r.outcome, ''),
           'exit_code', r.exit_code, 'skip_reason', NULLIF(r.skip_reason, '')))
FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[]) AS u(run_id, scheduled_for)
JOIN runs r ON r.run_id = u.run_id AND r.scheduled_for = u.scheduled_for
CROSS JOIN LATERAL (
    SELECT array_agg(event) AS events
    FROM webhook_endpoints w CROSS JOIN unnest(w.events) AS event
    WHERE w.tenant_id = r.tenant_id AND w.enabled
) wanted
CROSS JOIN LATERAL (
    SELECT 'run.' || r.status AS event
    WHERE r.status IN ('succeeded', 'failed', 'skipped') AND 'run.' || r.status = ANY(wanted.events)
    UNION ALL
    SELECT 'internal.job_failed'
    WHERE r.status = 'failed'
      AND EXISTS (SELECT FROM jobs j
                  WHERE j.job_id = r.job_id AND j.auto_pause_after IS NOT NULL AND j.enabled
                    AND j.pause IS NULL AND j.deleted_at IS NULL)
    UNION ALL
    SELECT 'run.late'
    WHERE r.started_at > r.due_at + interval '1 second' AND r.trigger IN ('schedule', 'manual', 'replay')
      AND 'run.late' = ANY(wanted.events)
      AND EXISTS (SELECT FROM jobs j
                  WHERE j.job_id = r.job_id
                    AND r.started_at > r.due_at + make_interval(secs => j.late_after_s))
      AND NOT EXISTS (SELECT FROM run_attempts a
                      WHERE a.run_id = r.run_id AND a.scheduled_for = r.scheduled_for
                        AND a.attempt < r.attempt AND a.started_at IS NOT NULL)
) e
ON CONFLICT (run_id, event) WHERE run_id IS NOT NULL DO NOTHING;

-- name: note_late_runs
-- Owe word of runs that wait, without a worker, longer than their job's late_after_s: told while it
-- is so, not when it is over. One that a worker has and starts late is told by note_run_ends. Only
-- tenants that want to hear it are looked at, and a run is told once (outbox_run_event_once).
-- Index: runs_active (lease_owner IS NULL, tenant), outbox_run_event_once.
WITH listening AS MATERIALIZED (
    SELECT DISTINCT w.tenant_id FROM webhook_endpoints w
    WHERE w.enabled AND 'run.late' = ANY(w.events)
), late AS MATERIALIZED (
    SELECT r.*, j.late_after_s
    FROM listening l
    JOIN runs r ON r.tenant_id = l.tenant_id
    JOIN jobs j ON j.job_id = r.job_id
    WHERE r.lease_owner IS NULL AND r.finished_at IS NULL AND r.ready_at <= now()
      AND r.status IN ('queued', 'blocked') AND r.failures + r.lease_losses = 0
      AND r.trigger IN ('schedule', 'manual', 'replay')
      AND r.due_at + make_interval(secs => j.late_after_s) < now()
      AND NOT EXISTS (SELECT FROM outbox o WHERE o.run_id = r.run_id AND o.event = 'run.late')
    LIMIT %(limit)s
)
INSERT INTO outbox (tenant_id, event, run_id, job_id, payload)
SELECT tenant_id, 'run.late', run_id, job_id,
       jsonb_build_object(
           'run_id', run_id, 'job_id', job_id, 'job_version', job_version, 'status', status,
           'trigger', trigger, 'scheduled_for', scheduled_for, 'due_at', due_at,
           'late_after_s', late_after_s)
FROM late
ON CONFLICT (run_id, event) WHERE run_id IS NOT NULL DO NOTHING;

-- name: note_job_event
-- Owe word of something about a job; nothing when nobody wants it and no e-mail can be sent.
INSERT INTO outbox (tenant_id, event, job_id, payload)
SELECT t.tenant_id, %(event)s, %(job_id)s, %(payload)s::jsonb
FROM tenants t
WHERE t.tenant_id = %(tenant_id)s
  AND (t.contact_email <> ''
       OR EXISTS (SELECT FROM webhook_endpoints w
                  WHERE w.tenant_id = t.tenant_id AND w.enabled AND %(event)s = ANY(w.events)));

-- name: take_job_failures
-- Take notes to ourselves that jobs have failed. Guard: SKIP LOCKED, and the caller's transaction:
-- a scheduler that dies over one leaves it to the next.
-- Index: outbox_unsent.
SELECT id, tenant_id, job_id FROM outbox
WHERE sent_at IS NULL AND event = 'internal.job_failed'
ORDER BY id
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED;

-- name: newest_ends_of_job
-- How the job's newest runs ended, newest first, since somebody last let it run again: failures from
-- before a pause or an edit of the job's state are forgiven.
-- Index: run_occurrence_once (job_id, scheduled_for).
SELECT r.status FROM runs r
WHERE r.job_id = %(job_id)s AND r.status IN ('succeeded', 'failed')
  AND r.scheduled_for <= now()
  AND r.finished_at > COALESCE(
      (SELECT max(v.effective_from)
       FROM (SELECT effective_from,
                    enabled AND COALESCE(policies->'pause', 'null') = 'null'::jsonb AS is_active,
                    lag(enabled AND COALESCE(policies->'pause', 'null') = 'null'::jsonb)
                        OVER (ORDER BY version) AS was_active
             FROM job_versions WHERE job_id = %(job_id)s) v
       WHERE v.is_active AND v.was_active IS FALSE), '-infinity')
ORDER BY r.scheduled_for DESC, r.run_id DESC
LIMIT %(limit)s;

-- name: settle_job_failures
UPDATE outbox SET sent_at = now() WHERE id = ANY(%(ids)s);

-- name: fan_out
-- Make a delivery for each receiver that wants a message: endpoints that subscribe to its event (or
-- the one it names), and the tenant's e-mail for what people are told. Those that are off get none.
-- Guard: SKIP LOCKED and sent_at in one transaction; delivery_once is the second net.
-- Index: outbox_unsent, webhooks_by_tenant.
WITH taken AS MATERIALIZED (
    SELECT id, tenant_id, event, webhook_id, created_at FROM outbox
    WHERE sent_at IS NULL AND event <> 'internal.job_failed'
    ORDER BY id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), made AS (
    INSERT INTO notification_deliveries
        (delivery_id, target_id, tenant_id, webhook_id, message_id, status, attempts, claim_used,
         last_error, next_attempt_at, try_until)
    SELECT gen_random_uuid(), w.webhook_id, t.tenant_id, w.webhook_id, t.id, 'pending', 0, false,
           '', now(), GREATEST(t.created_at, now()) + make_interval(secs => %(try_for_s)s)
    FROM taken t
    JOIN webhook_endpoints w ON w.tenant_id = t.tenant_id
    WHERE CASE WHEN t.webhook_id IS NULL THEN w.enabled AND t.event = ANY(w.events)
               ELSE w.webhook_id = t.webhook_id AND w.deleted_at IS NULL
                    AND t.event = 'webhook.ping' END
    UNION ALL
    SELECT gen_random_uuid(), n.tenant_id, n.tenant_id, NULL, t.id, 'pending', 0, false, '', now(),
           now() + make_interval(secs => %(try_for_s)s)
    FROM taken t
    JOIN tenants n ON n.tenant_id = t.tenant_id
    WHERE t.event IN ('webhook.disabled', 'job.auto_paused') AND n.contact_email <> ''
    ON CONFLICT (message_id, target_id) DO NOTHING
    RETURNING delivery_id
), sent AS (
    UPDATE outbox o SET sent_at = now() FROM taken t WHERE o.id = t.id
)
SELECT (SELECT count(*) FROM taken) AS messages, (SELECT count(*) FROM made) AS deliveries;

-- name: notifier_lag
-- How long the oldest message waits that was not fanned out, or not tried at any receiver.
-- Index: outbox_unsent, deliveries_untried.
SELECT COALESCE(extract(epoch FROM now() - LEAST(
           (SELECT created_at FROM outbox WHERE sent_at IS NULL ORDER BY id LIMIT 1),
           (SELECT min(created_at) FROM notification_deliveries
            WHERE status = 'pending' AND attempts = 0))), 0)::float8 AS lag_s;

-- name: try_notifier_lock
-- One scheduler claims at a time: the number under way is counted before it is added to.
SELECT pg_try_advisory_xact_lock(hashtext('notifier')) AS is_ours;

-- name: claim_deliveries
-- Claim what is due: of each receiver as many as its share allows, of a tenant half of all slots at
-- most; those that are well first, and next whose tenant has least under way. A slow receiver holds
-- its slots for long without ever failing: the next free one goes to somebody else. A claim is a token with an end: a delivery
-- that nobody has reported on by then is due again.
-- Receivers are found by skipping along the index, so that one with a million waiting costs a look.
-- Guard: pending and due under the lock. Index: deliveries_due.
WITH RECURSIVE targets AS (
    (SELECT target_id FROM notification_deliveries WHERE status = 'pending'
     ORDER BY target_id LIMIT 1)
    UNION ALL
    SELECT (SELECT d.target_id FROM notification_deliveries d
            WHERE d.status = 'pending' AND d.target_id > t.target_id
            ORDER BY d.target_id LIMIT 1)
    FROM targets t WHERE t.target_id IS NOT NULL
), standing AS MATERIALIZED (
    -- An e-mail's target is the tenant itself.
    SELECT t.target_id, COALESCE(w.tenant_id, t.target_id) AS tenant_id,
           w.failing_since IS NOT NULL AS is_failing,
           (SELECT count(*) FROM notification_deliveries d
            WHERE d.target_id = t.target_id AND d.status = 'pending' AND d.claim IS NOT NULL
              AND d.next_attempt_at > now()) AS under_way
    FROM targets t
    LEFT JOIN webhook_endpoints w ON w.webhook_id = t.target_id
    WHERE t.target_id IS NOT NULL
), total AS MATERIALIZED (
    SELECT %(slots)s - COALESCE(sum(under_way), 0) AS free,
           %(slots)s / 2 - COALESCE(sum(under_way) FILTER (WHERE is_failing), 0) AS free_for_failing
    FROM standing
), of_tenant AS MATERIALIZED (
    SELECT tenant_id, sum(under_way) AS under_way FROM standing GROUP BY tenant_id
), due AS MATERIALIZED (
    SELECT d.delivery_id, d.next_attempt_at, s.is_failing,
           o.under_way + row_number() OVER (PARTITION BY s.tenant_id
                                            ORDER BY s.is_failing, d.rank, d.next_attempt_at) AS turn
    FROM standing s
    JOIN of_tenant o ON o.tenant_id = s.tenant_id
    CROSS JOIN LATERAL (
        SELECT o.delivery_id, o.next_attempt_at, row_number() OVER (ORDER BY o.next_attempt_at) AS rank
        FROM (SELECT delivery_id, next_attempt_at FROM notification_deliveries
              WHERE target_id = s.target_id AND status = 'pending' AND next_attempt_at <= now()
              ORDER BY next_attempt_at
              LIMIT GREATEST(0, CASE WHEN s.is_failing THEN 1 ELSE %(concurrency)s END - s.under_way)
             ) o
    ) d
), chosen AS MATERIALIZED (
    SELECT d.delivery_id
    FROM (SELECT *, row_number() OVER (PARTITION BY is_failing ORDER BY turn, next_attempt_at) AS place
          FROM due WHERE turn <= %(slots)s / 2) d
    CROSS JOIN total
    WHERE NOT d.is_failing OR d.place <= total.free_for_failing
    ORDER BY d.is_failing, d.turn, d.next_attempt_at
    LIMIT (SELECT GREATEST(0, free) FROM total)
), locked AS MATERIALIZED (
    SELECT d.delivery_id FROM notification_deliveries d
    JOIN chosen c ON c.delivery_id = d.delivery_id
    WHERE d.status = 'pending' AND d.next_attempt_at <= now()
    FOR UPDATE OF d SKIP LOCKED
)
UPDATE notification_deliveries d
SET claim = gen_random_uuid(), claim_used = false,
    next_attempt_at = now() + make_interval(secs => %(claim_s)s)
FROM locked l
WHERE d.delivery_id = l.delivery_id
RETURNING d.delivery_id, d.claim;

-- name: unclaim_deliveries
-- Give claims back whose messages the broker didn't take. Guard: the very claim, not used yet.
UPDATE notification_deliveries d
SET claim = NULL, next_attempt_at = now() + make_interval(secs => %(wait_s)s)
FROM unnest(%(delivery_ids)s::uuid[], %(claims)s::uuid[]) AS u(delivery_id, claim)
WHERE d.delivery_id = u.delivery_id AND d.claim = u.claim AND NOT d.claim_used
  AND d.status = 'pending';

-- name: use_claim
-- Begin the attempt that a claim allows. Guard: this claim, unused and not over; no row means that
-- another task has it, that it is too late, or that the delivery is final.
-- Index: primary key.
UPDATE notification_deliveries d
SET claim_used = true, attempts = d.attempts + 1,
    next_attempt_at = now() + make_interval(secs => %(claim_s)s)
FROM outbox o
WHERE d.delivery_id = %(delivery_id)s AND d.claim = %(claim)s AND NOT d.claim_used
  AND d.status = 'pending' AND d.next_attempt_at > now() AND o.id = d.message_id
RETURNING d.delivery_id, d.tenant_id, d.webhook_id, d.attempts, d.attempts_before, d.try_until, o.message_id, o.event,
          o.payload, o.created_at;

-- name: report_delivery
-- Write what follows an attempt. Guard: the claim under which it was made; no row means that it took
-- longer than its claim, and another one follows it or has.
-- Index: primary key.
UPDATE notification_deliveries
SET status = %(status)s, claim = NULL, claim_used = false,
    next_attempt_at = CASE WHEN %(status)s = 'pending'
                           THEN now() + make_interval(secs => %(wait_s)s) END,
    finished_at = CASE WHEN %(status)s = 'pending' THEN NULL ELSE now() END,
    last_status_code = %(status_code)s, last_error = %(error)s
WHERE delivery_id = %(delivery_id)s AND claim = %(claim)s AND claim_used AND status = 'pending'
RETURNING delivery_id;

-- name: note_endpoint_success
-- Written at the first success after a failure, and once a minute: not for each delivery.
UPDATE webhook_endpoints SET failing_since = NULL, last_success_at = now()
WHERE webhook_id = %(webhook_id)s
  AND (failing_since IS NOT NULL OR last_success_at IS NULL
       OR last_success_at < now() - interval '1 minute');

-- name: note_endpoint_failure
UPDATE webhook_endpoints SET failing_since = now()
WHERE webhook_id = %(webhook_id)s AND failing_since IS NULL;

-- name: switch_endpoint_off
-- Guard: it is on, and at the address that failed. No row: somebody else was faster, or mended it.
UPDATE webhook_endpoints
SET enabled = false, off_reason = %(reason)s, off_at = now(), version = version + 1,
    updated_at = now()
WHERE webhook_id = %(webhook_id)s AND enabled AND url = %(url)s
RETURNING webhook_id, tenant_id, url;

-- name: cancel_deliveries
-- What an endpoint that is off is still owed is given up; a redelivery is up to its owner.
-- Index: deliveries_due.
UPDATE notification_deliveries
SET status = 'cancelled', finished_at = now(), claim = NULL, next_attempt_at = NULL
WHERE target_id = %(webhook_id)s AND status = 'pending';

-- name: purge_deliveries
-- Index: deliveries_by_age.
WITH old AS MATERIALIZED (
    SELECT delivery_id FROM notification_deliveries
    WHERE created_at < now() - make_interval(days => %(days)s) AND status <> 'pending'
    ORDER BY created_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), attempts AS (
    DELETE FROM delivery_attempts a USING old WHERE a.delivery_id = old.delivery_id
)
DELETE FROM notification_deliveries d USING old WHERE d.delivery_id = old.delivery_id;

-- name: purge_outbox
-- Index: outbox_by_age.
WITH old AS MATERIALIZED (
    SELECT o.id FROM outbox o
    WHERE o.created_at < now() - make_interval(days => %(days)s) AND o.sent_at IS NOT NULL
      AND NOT EXISTS (SELECT FROM notification_deliveries d WHERE d.message_id = o.id)
    ORDER BY o.created_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
DELETE FROM outbox o USING old WHERE o.id = old.id;

-- name: purge_webhooks
-- Deleted webhooks of which no delivery is left.
DELETE FROM webhook_endpoints w
WHERE w.deleted_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM notification_deliveries d WHERE d.webhook_id = w.webhook_id);

-- name: purge_task_results
-- What the console shows of notification and maintenance tasks.
WITH old AS MATERIALIZED (
    SELECT id FROM django_celery_results_taskresult
    WHERE date_created < now() - make_interval(days => %(days)s)
    ORDER BY date_created LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
DELETE FROM django_celery_results_taskresult t USING old WHERE t.id = old.id;
