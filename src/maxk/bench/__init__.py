"""Operations and whole epochs against what a user would run instead: correct first, then timed."""
