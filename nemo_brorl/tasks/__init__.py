"""What is asked and how it is judged: questions, verifiers, scoring processes, the sandbox."""
