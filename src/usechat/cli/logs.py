"""What `usechat serve` writes to its log, as lines for people or for programs."""

import json
import logging
import time
from typing import Any, Final

from uvicorn.config import LOGGING_CONFIG

from usechat.cli.settings import LogFormat

__all__ = ["JsonFormatter", "logging_config"]

_LOGGERS: Final = {**LOGGING_CONFIG["loggers"], "usechat": {"handlers": ["default"], "level": "INFO"}}


def logging_config(form: LogFormat) -> dict[str, Any]:
    """The settings of the log, for `logging.config.dictConfig`."""
    if form == "text":
        return {**LOGGING_CONFIG, "loggers": _LOGGERS}
    formatters = {name: {"()": JsonFormatter} for name in LOGGING_CONFIG["formatters"]}
    # Everything that is logged, also by others, so that each line is JSON.
    root = {"handlers": ["default"], "level": "WARNING"}
    loggers = {name: {**logger, "propagate": False} for name, logger in _LOGGERS.items()}
    return {**LOGGING_CONFIG, "formatters": formatters, "loggers": loggers, "root": root}


class JsonFormatter(logging.Formatter):
    """One JSON object a line; what a record brings in `fields` stands beside its message."""

    converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # All of it in ASCII: there are letters that a reader may take for the end of a line.
        return json.dumps(line)
