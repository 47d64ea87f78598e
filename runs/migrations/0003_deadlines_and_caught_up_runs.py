"""Deadlines of runs, and the index of waiting ones with live work apart. Before the deploy."""

from django.db import migrations, models

ADD_DEADLINE = "ALTER TABLE runs ADD COLUMN deadline_at timestamptz"
DROP_DEADLINE = "ALTER TABLE runs DROP COLUMN deadline_at"

# On the partitioned table, and by that on each of its partitions.
NEW_INDEX = """
DROP INDEX runs_active;
CREATE INDEX runs_active ON runs
    (lease_owner, tenant_id, (trigger IN ('catch_up', 'backfill')), ready_at)
    WHERE finished_at IS NULL;
"""
OLD_INDEX = """
DROP INDEX runs_active;
CREATE INDEX runs_active ON runs (lease_owner, tenant_id, ready_at) WHERE finished_at IS NULL;
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0002_scheduler_processes")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AddField(
                    model_name="run",
                    name="deadline_at",
                    field=models.DateTimeField(null=True),
                ),
            ],
            database_operations=[migrations.RunSQL(ADD_DEADLINE, DROP_DEADLINE)],
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveIndex(model_name="run", name="runs_active"),
                migrations.AddIndex(
                    model_name="run",
                    index=models.Index(
                        "lease_owner",
                        "tenant",
                        models.ExpressionWrapper(
                            models.Q(trigger__in=["catch_up", "backfill"]),
                            output_field=models.BooleanField(),
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
