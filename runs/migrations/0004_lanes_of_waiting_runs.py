"""The index of waiting runs keeps retries apart too. Before the deploy."""

from django.db import migrations, models

# On the partitioned table, and by that on each of its partitions.
NEW_INDEX = """
DROP INDEX runs_active;
CREATE INDEX runs_active ON runs (
    lease_owner,
    tenant_id,
    (CASE WHEN trigger IN ('catch_up', 'backfill') THEN 2 WHEN failures > 0 THEN 1 ELSE 0 END),
    ready_at
) WHERE finished_at IS NULL;
"""
OLD_INDEX = """
DROP INDEX runs_active;
CREATE INDEX runs_active ON runs
    (lease_owner, tenant_id, (trigger IN ('catch_up', 'backfill')), ready_at)
    WHERE finished_at IS NULL;
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0003_deadlines_and_caught_up_runs")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveIndex(model_name="run", name="runs_active"),
                migrations.AddIndex(
                    model_name="run",
                    index=models.Index(
                        "lease_owner",
                        "tenant",
                        models.Case(
                            models.When(trigger__in=["catch_up", "backfill"], then=2),
                            models.When(failures__gt=0, then=1),
                            default=0,
                            output_field=models.SmallIntegerField(),
                        ),
                        "ready_at",
                        name="runs_active",
                        condition=models.Q(finished_at=None),
                    ),
                ),
            ],
            database_operations=[migrations.RunSQL(NEW_INDEX, OLD_INDEX)],
        ),
    ]
