"""SkyPilot's catalog of machines and prices. Importing SkyPilot takes seconds, so it is imported where it is asked."""

import contextlib
import io

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
        raise UserError("benchmark.price_source=skypilot needs SkyPilot: install the extra aws") from error
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it tells its progress there, in words for its own client
            if not catalog.instance_type_exists(instance, clouds="aws"):
                return None
            price = float(catalog.get_hourly_cost(instance, use_spot=spot, region=region, zone=None, clouds="aws"))
    except ValueError:
        return None  # not in this region, or not on its spot market
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise NotReachable(
            f"benchmark.price_source=skypilot: the catalog cannot be had: {first}; benchmark.prices gives prices "
            "without asking anybody"
        ) from error
    return price if price == price and price > 0 else None
