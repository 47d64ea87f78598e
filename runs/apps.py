"""Application configuration of `runs`: it registers what a change of a job does to its runs."""

from django.apps import AppConfig


class RunsConfig(AppConfig):
    name = "runs"

    def ready(self) -> None:
        """Register the effects once models can be imported."""
        from jobs import run_effects
        from runs.job_effects import StoredRunEffects

        run_effects.register(StoredRunEffects())
