"""What every process has: settings, logs, durable files, health probe."""
