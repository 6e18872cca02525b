"""A plan in words: every cell with its expected time and dollars, and the sums."""

from collections.abc import Callable

from ..common.text import MISSING, duration
from ..pricing.cost import dollars
from .plan import Forecast, Plan, Planned
from .store import FINISHED


def plan_text(plan: Plan) -> str:
    """Return the plan for a person: every cell with its expected time and dollars, and the sums."""
    head = ("id", "cell", "devices", "batch", "price/h", "expected time", "expected cost", "basis")
    lines = [head]
    for planned in plan.cells:
        forecast, cell = planned.forecast, planned.cell
        state = planned.row.get("status") if planned.row else None
        basis = f"{state} already" if state in FINISHED else forecast.basis
        cost = dollars(planned.row.get("usd_total")) if planned.row and not planned.todo else None
        lines.append(
            (
                cell.id,
                f"{cell.label}, seed {cell.seed}",
                str(cell.devices),
                str(cell.config.batch.global_size),
                dollars(planned.price.usd_per_hour),
                _range(forecast, duration),
                cost or _range(_priced(planned), dollars),
                basis,
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    table = ["  ".join(f"{part:<{width}}" for part, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    seconds = [planned.forecast.seconds for planned in plan.todo if planned.forecast.seconds is not None]
    unknown = len(plan.todo) - len(seconds)
    open_ = f"; of {unknown} nothing is known" if unknown else ""
    low, high = plan.total("low"), plan.total("high")
    usd = f"{dollars(low)} to {dollars(high)}" if low is not None else f"{MISSING} (no price or no time known)"
    expected = f"{duration(sum(seconds)) if seconds else MISSING} one after the other{open_}; {usd}"
    ceiling = plan.config.benchmark.max_usd
    return "\n".join(
        [
            f"experiment {plan.name}: {len(plan.cells)} cells, {len(plan.todo)} to run; "
            f"constant: {plan.config.benchmark.held.value}",
            "",
            *table,
            "",
            f"expected in all: {expected if plan.todo else 'nothing is left to run'}"
            + (f"; at most {dollars(ceiling)}" if ceiling is not None else "")
            + (f"; spent so far {dollars(plan.spent)}" if plan.spent else ""),
        ]
    )


def _priced(planned: Planned) -> Forecast:
    """Return the dollars of a forecast in the place of its seconds."""
    forecast = planned.forecast
    return Forecast(planned.usd(forecast.seconds), planned.usd(forecast.low), planned.usd(forecast.high))


def _range(forecast: Forecast, shown: Callable[[float | None], str]) -> str:
    if forecast.seconds is None:
        return MISSING
    if forecast.low == forecast.high:
        return shown(forecast.seconds)
    return f"{shown(forecast.low)} to {shown(forecast.high)}"
