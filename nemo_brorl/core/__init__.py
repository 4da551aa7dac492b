"""The foundation that everything may import: errors, logs, files, clocks, the object store."""
