"""The report's sections, one module each: `section(run) -> Section | None`; None where it has nothing to say."""
