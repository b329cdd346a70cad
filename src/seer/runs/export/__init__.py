"""Records in other formats: Inspect logs, OpenTelemetry traces, arrays."""
