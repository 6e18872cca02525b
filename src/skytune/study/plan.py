"""What a design is going to take: its cells, the seconds and dollars that each is expected to need, and whether that is
within the budget; the same in words. Nothing is launched here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..common.text import MISSING, columns, duration
from ..config import ConfigError, RunConfig
from ..pricing.cost import Cost, dollars
from ..pricing.prices import Price, price_of
from ..report.fit import Fit, fits, nearest
from .cells import Cell, cells_of
from .machines import Machine
from .store import FINISHED, ResultsStore, attempts_of
from .table import base_row

Prices = Callable[[Machine], Price]

RANGE = 2.0
"""An assumed rate may be off by this factor, in both directions."""

LEAST_S = 60.0
"""Seconds that a cell is taken to need at least where nothing better is known."""

LOCAL_SETUP_S = 20.0
"""Seconds until worker processes train on a machine that is there."""


@dataclass(frozen=True)
class Forecast:
    """What a cell is expected to take; None where nothing is known."""

    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    basis: str = "unknown"
    """measured (it has run), fit (to cells that ran), assumed (a rate of the design), unknown."""


@dataclass(frozen=True)
class Planned:
    """A cell with what is expected of it."""

    cell: Cell
    price: Price
    forecast: Forecast
    row: dict[str, Any] | None
    """The stored row, where there is one."""

    spent: float
    """Dollars of all starts so far, where the price is known; 0 for a job that was adopted."""

    @property
    def todo(self) -> bool:
        """Whether it has to be run."""
        return self.row is None or self.row.get("status") not in FINISHED

    def usd(self, seconds: float | None) -> float | None:
        """Dollars of so many seconds on all nodes; None where a price is unknown."""
        hourly = self.price.hourly(self.cell.machine.nodes)
        return None if seconds is None or hourly is None else seconds / 3600 * hourly


@dataclass(frozen=True)
class Plan:
    """All cells of a design, in its order."""

    name: str
    config: RunConfig
    cells: list[Planned]

    @property
    def todo(self) -> list[Planned]:
        """The cells that have to be run."""
        return [planned for planned in self.cells if planned.todo]

    @property
    def spent(self) -> float:
        """Dollars of all cells so far, starts that were killed included."""
        return sum(planned.spent for planned in self.cells)

    def total(self, which: str) -> float | None:
        """Dollars that the cells to run are expected to cost: `seconds` (the middle), `low` or `high`; those that
        nothing is known of not counted, None where that is all of them."""
        known = [usd for planned in self.todo if (usd := planned.usd(getattr(planned.forecast, which))) is not None]
        return sum(known) if known else None

    def planned_rows(self) -> list[dict[str, Any]]:
        """Return what is known of every cell before it runs, as rows for the predictions of the page."""
        return [_planned_row(self.name, planned.cell) for planned in self.cells]

    def check(self) -> None:
        """Refuse what must not begin.

        Raises:
            ConfigError: no budget for machines that are paid for, no price to hold a budget by, or not enough of it;
                cells that would share the time of this machine, each paying for all of it.
        """
        ceiling, parallel = self.config.study.max_usd, self.config.study.parallel
        shared = [one for one in self.todo if one.cell.machine.local and one.price.usd_per_hour is not None]
        if parallel > 1 and len(shared) > 1:
            raise ConfigError(
                f"study.parallel={parallel}: cells that share this machine would each pay for all of it; use "
                "study.parallel=1, or give this machine no price"
            )
        paid = next((planned.cell for planned in self.todo if not planned.cell.machine.local), None)
        if ceiling is None:
            if paid is not None:
                raise ConfigError(f"study.max_usd: {paid.machine} is paid for; say how much all cells may cost")
            return
        alone = all(planned.cell.machine.local for planned in self.todo)
        least = min((planned.usd(LEAST_S) or 0.0 for planned in self.todo), default=0.0)
        for planned in self.todo:
            # A machine that is there anyway spends nothing of what rented ones may cost.
            if planned.price.usd_per_hour is None and (alone or not planned.cell.machine.local):
                machine = planned.cell.machine
                way = "compute.usd_per_hour or " if machine.local else "study.price_source=skypilot|aws or "
                raise ConfigError(
                    f"study.max_usd={ceiling:g} cannot be kept: no price is known for '{machine.priced}'; give "
                    f"{way}'study.prices={{{machine.priced}: USD}}'"
                )
        if least and self.spent + least > ceiling:  # 0: nothing is left to run, or something costs nothing
            raise ConfigError(
                f"study.max_usd={ceiling:g}: no cell can begin: {dollars(self.spent)} are spent, and a minute of "
                f"the cheapest machine costs {dollars(least)}; allow more"
            )
        expected = self.total("seconds") or 0.0
        if self.todo and self.spent + expected > ceiling:
            low, high = self.total("low") or 0.0, self.total("high") or 0.0
            spent = f", {dollars(self.spent)} are spent" if self.spent else ""
            raise ConfigError(
                f"study.max_usd={ceiling:g}: the {len(self.todo)} cells to run are expected to cost "
                f"{dollars(expected)} ({dollars(low)} to {dollars(high)}){spent}: take fewer cells, or allow more"
            )


def make_plan(config: RunConfig, store: ResultsStore | None = None, prices: Prices | None = None) -> Plan:
    """Return the plan of `config.study`.

    Args:
        store: results so far; those under the experiment's own name if not given.
        prices: what a machine costs; asked as `study.price_source` says if not given, once a machine.

    Raises:
        ConfigError: a bad design.
        UserError: whoever is asked for prices does not answer.
    """
    name = experiment_name(config)
    store = store or ResultsStore(name)
    cells = cells_of(config)
    rows = store.read()
    models = fits(list(rows.values()))
    known: dict[str, Price] = {}
    planned = []
    for cell in cells:
        machine = cell.machine
        if machine.priced not in known:
            known[machine.priced] = (prices or asked(config))(machine)
        row = rows.get(cell.name)
        if row is not None and row.get("status") == "failed" and config.study.retry_failed:
            row = {**row, "status": "stopped"}
        forecast, price = _forecast(config, cell, row, models, name), known[machine.priced]
        planned.append(Planned(cell, price, forecast, row, _spent(store, cell, price, row)))
    return Plan(name, config, planned)


def experiment_name(config: RunConfig) -> str:
    """Return the name of the experiment: `study.name`, else the run's, else `study`."""
    return config.study.name or config.name or "experiment"


def _spent(store: ResultsStore, cell: Cell, price: Price, row: Mapping[str, Any] | None) -> float:
    if row is not None and row.get("status") in FINISHED:
        return 0.0 if row.get("origin") == "adopted" else row.get("usd_total") or 0.0
    return Cost(attempts_of(store, cell, price)).usd or 0.0


def asked(config: RunConfig) -> Prices:
    """Return what looks prices up as the design says."""
    return lambda machine: price_of(machine.instance, machine.spot, config.study, config.compute.usd_per_hour)


def _planned_row(name: str, cell: Cell) -> dict[str, Any]:
    return {**base_row(name, cell), "samples": cell.samples, "steps": cell.steps}


def _forecast(
    config: RunConfig, cell: Cell, row: Mapping[str, Any] | None, models: Mapping[tuple[str, ...], Fit], name: str
) -> Forecast:
    if row is not None and row.get("status") == "done" and row.get("total_s"):
        return Forecast(row["total_s"], row["total_s"], row["total_s"], "measured")
    planned = _planned_row(name, cell)
    fit = nearest(models, planned)
    if fit is not None and fit.usable and cell.samples and cell.steps:
        guess = fit.predict(planned)
        return Forecast(guess.seconds, guess.low, guess.high, "fit")
    design = config.study
    rate = design.assume_samples_per_s.get(cell.machine.accelerator or cell.config.compute.device.value)
    if rate is None or not cell.samples:
        return Forecast()
    setup = LOCAL_SETUP_S if cell.machine.local else design.assume_setup_s
    work = cell.samples / (rate * cell.devices)
    return Forecast(setup + work, (setup + work) / RANGE, (setup + work) * RANGE, "assumed")


def plan_text(plan: Plan) -> str:
    """Return the plan for a person: every cell with its expected time and dollars, and the sums."""
    lines = [("id", "cell", "devices", "batch", "price/h", "expected time", "expected cost", "basis")]
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
    seconds = [planned.forecast.seconds for planned in plan.todo if planned.forecast.seconds is not None]
    unknown = len(plan.todo) - len(seconds)
    open_ = f"; of {unknown} nothing is known" if unknown else ""
    low, high = plan.total("low"), plan.total("high")
    usd = f"{dollars(low)} to {dollars(high)}" if low is not None else f"{MISSING} (no price or no time known)"
    expected = f"{duration(sum(seconds)) if seconds else MISSING} one after the other{open_}; {usd}"
    ceiling = plan.config.study.max_usd
    return "\n".join(
        [
            f"experiment {plan.name}: {len(plan.cells)} cells, {len(plan.todo)} to run; "
            f"constant: {plan.config.study.held.value}",
            "",
            *columns(lines),
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
