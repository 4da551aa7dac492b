"""Where prompts come from: sources of questions, and the seeded, resumable stream of tokenised prompts."""
