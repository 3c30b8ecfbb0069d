"""How the workers of a run are started: all in this process, or one process per group."""

from runnel.core.errors import ConfigError


def check_ray(field: str) -> None:
    """Refuse what needs Ray where that is not installed; `field` is the setting that asks for it."""
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise ConfigError(field, "ray", f"needs Ray: pip install 'runnel[ray]' ({error})") from error
