"""Reads the text that Prometheus reads."""

from prometheus_client.parser import text_string_to_metric_families


def samples(text: str) -> dict[str, float]:
    """The values by name with labels, as they are written: `runs_waiting{reason="slot"}`."""
    return {
        name_with_labels(sample.name, sample.labels): float(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def name_with_labels(name: str, labels: dict[str, str]) -> str:
    """`name`, or `name{label="value",…}` with the labels in order."""
    inner = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{inner}}}" if inner else name
