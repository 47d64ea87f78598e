"""Which run a replay made of an ended one, and the index of dead letters. Before the deploy."""

from django.db import migrations, models

HAD_TROUBLE = models.Q(finished_at__isnull=False) & (
    models.Q(failures__gt=0) | models.Q(lease_losses__gt=0)
)

# On the partitioned table, and by that on each of its partitions.
ADD = """
ALTER TABLE runs ADD COLUMN replayed_by uuid;
CREATE INDEX runs_in_trouble ON runs (tenant_id, scheduled_for DESC, run_id DESC)
    WHERE finished_at IS NOT NULL AND (failures > 0 OR lease_losses > 0);
"""
DROP = """
DROP INDEX runs_in_trouble;
ALTER TABLE runs DROP COLUMN replayed_by;
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0005_replaced_runs")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AddField(
                    model_name="run",
                    name="replayed_by",
                    field=models.UUIDField(null=True),
                ),
                migrations.AddIndex(
                    model_name="run",
                    index=models.Index(
                        fields=["tenant", "-scheduled_for", "-run_id"],
                        name="runs_in_trouble",
                        condition=HAD_TROUBLE,
                    ),
                ),
            ],
            database_operations=[migrations.RunSQL(ADD, DROP)],
        ),
    ]
