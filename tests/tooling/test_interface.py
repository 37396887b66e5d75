"""What the engine forwards of the allocator: a function that it lacks in a release is found."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from lms_cli import paths
from lms_cli.wheel import allocator_interface

HEADER = """
class C10_CUDA_API CUDAAllocator : public DeviceAllocator {
 public:
  virtual ~CUDAAllocator() = default;
  virtual void plain(int a) = 0;
  virtual Info with_default(MempoolId_t pool = {0, 0}, bool all = true) = 0;
  virtual bool with_body(
      int a) const { // says something
    return false;
  }
};
"""
COMPAT = """
class AllocatorForwarder : public CUDAAllocator {
  void plain(int a) override {
    native_->plain(a);
  }
#if LMS_TORCH_AT_LEAST(11)
  Info with_default(MempoolId_t pool, bool all) override {
    return native_->with_default(pool, all);
  }
#elif LMS_TORCH_AT_LEAST(8)
  Info with_default(MempoolId_t pool) final {
#if defined(SOMETHING)
    return native_->with_default(pool);
#endif
  }
#else
  Info older() override;
#endif
  bool with_body(
      int a) const override {
    return native_->with_body(a);
  }
};
"""


def missing(compat: str, minor: int, header: str = HEADER) -> list[str]:
    """Names of the functions that a text does not override in PyTorch 2.`minor`."""
    headers = {"torch/include/c10/cuda/CUDACachingAllocator.h": header}
    official: Any = SimpleNamespace(text=headers.get)
    loaded: Any = SimpleNamespace(new_files={allocator_interface.COMPAT: compat})
    release: Any = SimpleNamespace(version=f"2.{minor}.0")
    lost, facts = allocator_interface.findings(official, loaded, release)
    count = header.count("virtual") - header.count("virtual ~")
    assert facts == f"{count} functions, all forwarded"
    return [re.findall(r"(\w+)\(", declaration)[0] for declaration in lost]


@pytest.mark.parametrize("minor", [8, 10, 11, 15])
def test_all_are_forwarded(minor: int) -> None:
    assert missing(COMPAT, minor) == []


def test_a_branch_for_other_releases_does_not_count() -> None:
    assert missing(COMPAT, 7) == ["with_default"]


@pytest.mark.parametrize("name", ["plain", "with_default", "with_body"])
def test_a_call_is_no_override(name: str) -> None:
    compat = re.sub(rf"\b{name}(\([^;]*?\)[^;]*?(?:override|final))", r"gone\1", COMPAT)
    assert missing(compat, 12) == [name]
    assert f"->{name}(" in compat


def test_functions_of_the_engine_that_are_deleted_are_found() -> None:
    """The engine's own text, against an interface of all that it overrides."""
    text = (paths.PATCHES / "files" / allocator_interface.COMPAT).read_text(encoding="utf-8")
    code = re.sub(r"^#.*$", ";", text, flags=re.MULTILINE)
    names = dict.fromkeys(re.findall(r"\b(\w+)\([^;{}]*\)\s*(?:const )?override\b", code))
    assert len(names) > 40
    body = "".join(f"  virtual void {name}() {{}}\n" for name in names)
    header = f"class CUDAAllocator {{\n{body}}};\n"
    newest = 99
    before = missing(text, newest, header)  # functions of older releases alone
    for name in names.keys() - set(before):
        without = re.sub(rf"\b{name}(\([^;{{}}]*\)\s*(?:const )?override)", r"gone\1", text)
        assert missing(without, newest, header) == sorted([*before, name], key=list(names).index)
