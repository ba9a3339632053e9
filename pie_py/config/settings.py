"""A server's configuration from what is given, the environment, a file and defaults."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from pie_py.config.server import ServerConfig
from pie_py.config.variables import PREFIX


def read_settings(file: Path | None = None, **given: Any) -> ServerConfig:
    """The configuration of the given fields; of the others the environment has values, then a file
    (TOML), then there are defaults. Raises `ValueError`: one is wrong (pydantic's, of settings, of
    TOML), and `OSError`: the file cannot be read.
    """
    if file is None and not any(name.upper().startswith(PREFIX) for name in os.environ):
        return ServerConfig(**given)  # what reads settings takes a tenth of a second to import
    from pydantic_settings import (
        BaseSettings,
        EnvSettingsSource,
        InitSettingsSource,
        PydanticBaseSettingsSource,
        SettingsConfigDict,
    )

    class Environment(EnvSettingsSource):
        """The environment's fields: all but the endpoint, whose variable names the server of
        clients.

        A server that took it too would listen where its operator's own client looks for it, and, at
        a loopback address, without its keys.
        """

        def __call__(self) -> dict[str, Any]:
            fields = super().__call__()
            fields.pop("endpoint", None)
            return fields

    class Settings(ServerConfig, BaseSettings):
        model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__")

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, Environment(settings_cls), InitSettingsSource(cls, in_file)

    # pydantic's own source takes no byte order mark, and a pipe for a file that is not there.
    in_file = {} if file is None else tomllib.loads(file.read_text(encoding="utf-8-sig"))
    return Settings(**given)
