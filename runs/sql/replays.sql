-- name: mark_replayed
-- Note on runs which run has been made of each. Guard: the caller holds their locks and knows that
-- they are final; nothing else of a final run ever changes.
-- Index: primary key (both columns, so that it prunes).
UPDATE runs r SET replayed_by = u.replayed_by
FROM unnest(%(run_ids)s::uuid[], %(scheduled_fors)s::timestamptz[], %(replayed_bys)s::uuid[])
     AS u(run_id, scheduled_for, replayed_by)
WHERE r.run_id = u.run_id AND r.scheduled_for = u.scheduled_for AND r.finished_at IS NOT NULL;
