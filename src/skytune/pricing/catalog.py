"""SkyPilot's catalog of machines and prices. Importing SkyPilot takes seconds, so it is imported where it is asked."""

import contextlib
import io
import logging
import textwrap
from collections.abc import Iterator
from urllib.parse import urlsplit

from ..config import NotReachable, UserError


def catalog_price(instance: str, spot: bool, region: str) -> float | None:
    """Return the lowest USD an hour of an EC2 instance in a region by SkyPilot's catalog; None where it lists none.

    Raises:
        UserError: SkyPilot is not installed.
        NotReachable: its catalog is not on this disk and cannot be fetched.
    """
    try:
        from sky import catalog
    except ModuleNotFoundError as error:
        raise UserError("study.price_source=skypilot needs SkyPilot: install the extra aws") from error
    try:
        # It tells its progress there, in words for its own client; what it logs as an error is told below.
        with contextlib.redirect_stdout(io.StringIO()), _without_errors():
            if not catalog.instance_type_exists(instance, clouds="aws"):
                return None
            price = float(catalog.get_hourly_cost(instance, use_spot=spot, region=region, zone=None, clouds="aws"))
    except ValueError:
        return None  # not in this region, or not on its spot market
    except Exception as error:
        raise NotReachable(
            f"study.price_source=skypilot: the catalog cannot be had: {_why(error)}; study.prices gives prices "
            "without asking anybody"
        ) from error
    return price if price == price and price > 0 else None


@contextlib.contextmanager
def _without_errors() -> Iterator[None]:
    """Keep SkyPilot's own error lines off the screen: its handler holds on to the standard output of its import."""
    logger = logging.getLogger("sky.catalog.common")

    def below_error(record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR

    logger.addFilter(below_error)
    try:
        yield
    finally:
        logger.removeFilter(below_error)


def _why(error: Exception) -> str:
    """Return in a few words why the catalog could not be fetched."""
    request, response = getattr(error, "request", None), getattr(error, "response", None)
    host = urlsplit(str(getattr(request, "url", None) or "")).hostname
    if host and response is not None:
        return f"{host} answers {response.status_code}"
    if host:
        return f"{host} does not answer"
    return textwrap.shorten(str(error), 150, placeholder="...") or type(error).__name__
