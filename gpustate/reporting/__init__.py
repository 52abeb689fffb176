"""What a run reports besides its output: event stream, webhook, audit log and support bundle."""
