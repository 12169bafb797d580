"""What HTTP is told about a decision: fields, and no more. No framework is known here, and no socket."""
