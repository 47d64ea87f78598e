"""Which newer run took a run's place (overlap = replace). Before the deploy."""

from django.db import migrations, models

ADD_REPLACED_BY = """
ALTER TABLE runs ADD COLUMN replaced_by uuid;
-- No row can break it yet, so the look through history is left out: it would hold everybody up.
ALTER TABLE runs ADD CONSTRAINT run_replaced_says_by
    CHECK (skip_reason <> 'replaced' OR replaced_by IS NOT NULL) NOT VALID;
"""
DROP_REPLACED_BY = "ALTER TABLE runs DROP COLUMN replaced_by"


class Migration(migrations.Migration):
    dependencies = [("runs", "0004_lanes_of_waiting_runs")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AddField(
                    model_name="run",
                    name="replaced_by",
                    field=models.UUIDField(null=True),
                ),
                migrations.AddConstraint(
                    model_name="run",
                    constraint=models.CheckConstraint(
                        condition=~models.Q(skip_reason="replaced")
                        | models.Q(replaced_by__isnull=False),
                        name="run_replaced_says_by",
                    ),
                ),
            ],
            database_operations=[migrations.RunSQL(ADD_REPLACED_BY, DROP_REPLACED_BY)],
        ),
    ]
