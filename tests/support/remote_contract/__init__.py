"""The checks for every provider of remote machines, beyond the contract of all providers.

    contract = RemoteContract("ssh", options=server.options(), cut=server.cut)

    @pytest.mark.parametrize("name", RemoteContract.names())
    def test_remote(name: str) -> None:
        contract.run(name)

The checks use the product as its users do: sandboxes with notebooks, served interfaces, models,
packages, repositories. Two sandboxes serve most of them. The environment must have a `HF_HOME` of
its own, `HF_ENDPOINT` set to the contract's `hub_url`, and a secret named SEER_CONTRACT_SECRET.
Checks of cuts need a way to break every connection to the host; `names(cuts=False)` is without.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support.remote_contract import _cuts, _parts, _work
from tests.support.remote_contract._subject import RemoteSubject

__all__ = ["RemoteContract"]

_CHECKS: Mapping[str, Callable[[RemoteSubject], None]] = {
    check.__name__: check for module in (_work, _parts, _cuts) for check in module.CHECKS
}


class RemoteContract:
    """Puts one provider of machines elsewhere through the checks."""

    def __init__(
        self,
        provider: str,
        *,
        folder: Path,
        options: Mapping[str, object] | None = None,
        cut: Callable[[], object] | None = None,
        gpu: str | None = None,
        packages: Sequence[str] = ("numpy",),
    ) -> None:
        """Describe the provider under test.

        Args:
            provider: Its name.
            folder: An empty folder for files of the checks.
            options: What configurations give as `provider_options`.
            cut: Breaks every connection to the provider's hosts; None where nothing can.
            gpu: The GPU that machines ask for.
            packages: What machines have installed; numpy among it.
        """
        self._subject = RemoteSubject(
            provider,
            folder=folder,
            options=options,
            cut=cut,
            gpu=gpu,
            packages=tuple(packages),
        )

    @staticmethod
    def names(*, cuts: bool = True) -> list[str]:
        """The names of all checks; without those that break connections if `cuts` is false."""
        cutting = {check.__name__ for check in _cuts.CHECKS}
        return [name for name in _CHECKS if cuts or name not in cutting]

    @property
    def hub_url(self) -> str:
        """Where the hub is that checks download from; set `HF_ENDPOINT` to it."""
        return self._subject.hub.url

    def run(self, name: str) -> None:
        """Run one check.

        Raises:
            AssertionError: The provider does not do what the check asks.
        """
        _CHECKS[name](self._subject)

    def close(self) -> None:
        """End the sandboxes that checks share."""
        self._subject.close()
