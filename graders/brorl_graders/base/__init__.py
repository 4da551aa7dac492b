"""What every part of the graders needs: errors, names, limits, values and texts. It imports no other part."""
