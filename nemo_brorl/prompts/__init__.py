"""Draw prompts: sources of questions, and a seeded, resumable stream of tokenised prompts."""
