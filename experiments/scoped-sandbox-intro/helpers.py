# helpers.py
def format_result(data: dict) -> str:
    """Format a result dict as markdown."""
    lines = ["## Result"]
    for key, value in data.items():
        lines.append(f"- **{key}**: {value}")
    return "\n".join(lines)
