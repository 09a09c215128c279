"""The bank of attacks: submissions that try to get points, or something else, without solving an exercise."""

from .packages import PACKAGE_ATTACKS, PackageAttack, attacked_package

__all__ = ["PACKAGE_ATTACKS", "PackageAttack", "attacked_package"]
