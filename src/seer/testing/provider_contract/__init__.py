"""The contract of a provider: named checks that every provider must pass.

    contract = ProviderContract(MyProvider(), deviations={"disk_is_limited": "the vendor says ..."})

    @pytest.mark.parametrize("name", ProviderContract.names())
    def test_contract(name: str) -> None:
        contract.run(name)

A deviation is a check that is known to fail, with the reason. The check still runs. If it passes,
the deviation is reported as an error, so that the list stays correct.
"""

import asyncio
from collections.abc import Mapping

from seer._sync import run_sync
from seer.errors import SeerError
from seer.providers import MachineSpec, Provider
from seer.testing.provider_contract import _commands, _files, _lifetime, _sockets
from seer.testing.provider_contract._subject import Check, Subject, eventually, expect

__all__ = ["ProviderContract", "eventually", "expect"]

_CHECKS: Mapping[str, Check] = {
    check.__name__: check
    for module in (_commands, _files, _sockets, _lifetime)
    for check in module.CHECKS
}
_PATIENCE = 240.0
"""Seconds after which a check counts as hung: far more than it takes on a busy machine."""


class ProviderContract:
    """Runs the checks on one provider."""

    def __init__(
        self,
        provider: Provider,
        *,
        spec: MachineSpec | None = None,
        deviations: Mapping[str, str] | None = None,
        large: int = 100 << 20,
    ) -> None:
        """Describe the provider under test.

        Args:
            provider: The provider. `get_provider(provider.name)` must return an equal one, because
                some checks call it in other processes.
            spec: The specification of the machines.
            deviations: The reason for each check that cannot pass, by the check's name.
            large: The size in bytes of a large file and of large output.
        """
        unknown = set(deviations or {}) - set(_CHECKS)
        if unknown:
            raise ValueError(f"deviations from checks that do not exist: {sorted(unknown)}")
        self._subject = Subject(provider, spec or MachineSpec(), large=large)
        self._deviations = dict(deviations or {})

    @staticmethod
    def names() -> list[str]:
        """The names of all checks."""
        return list(_CHECKS)

    def run(self, name: str) -> None:
        """Run one check.

        Raises:
            AssertionError: The check fails, or passes although it is listed as a deviation.
        """
        reason = self._deviations.get(name)
        if reason is None:
            run_sync(self._run(name))
            return
        try:
            run_sync(self._run(name))
        except (AssertionError, SeerError):
            return
        raise AssertionError(f"{name} passes now; remove the deviation ({reason})")

    async def _run(self, name: str) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                await _CHECKS[name](self._subject)
        except TimeoutError as error:
            if isinstance(error, SeerError):
                raise
            raise AssertionError(f"{name} took longer than {_PATIENCE:g} s") from error

    def close(self) -> None:
        """End the machine that the checks share."""
        run_sync(self._subject.close())
