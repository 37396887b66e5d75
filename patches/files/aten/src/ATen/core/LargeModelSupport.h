#pragma once

// The typed accessors of TensorBase, whose bodies upstream has in libtorch.
// There they go through the StorageImpl that library was compiled with; here
// they go through StorageImpl as these headers have it, which brings bytes back
// that are paged out. See Note [Large Model Support].
//
// ATen/core/TensorBase.h includes this file at its end.

#include <ATen/core/TensorBase.h>

#include <torch/csrc/api/include/torch/version.h>

#include <type_traits>

namespace at {

namespace lms {

template <typename T> const TensorBase& checked(const TensorBase& tensor) {
  const ScalarType actual = tensor.scalar_type();
  constexpr ScalarType expected =
      c10::CppTypeToScalarType<std::remove_const_t<T>>::value;
  TORCH_CHECK(
      actual == expected ||
          (isQIntType(actual) && toUnderlying(actual) == expected),
      "expected scalar type ",
      expected,
      " but found ",
      actual);
  return tensor;
}

} // namespace lms

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12
template <typename T> const T* TensorBase::const_data_ptr() const {
  return static_cast<const T*>(lms::checked<T>(*this).const_data_ptr());
}
#else
template <typename T, std::enable_if_t<!std::is_const_v<T>, int>>
const T* TensorBase::const_data_ptr() const {
  return static_cast<const T*>(lms::checked<T>(*this).const_data_ptr());
}

template <typename T, std::enable_if_t<std::is_const_v<T>, int>>
const std::remove_const_t<T>* TensorBase::const_data_ptr() const {
  return const_data_ptr<std::remove_const_t<T>>();
}
#endif

template <typename T> T* TensorBase::mutable_data_ptr() const {
  return static_cast<T*>(lms::checked<T>(*this).mutable_data_ptr());
}

template <typename T> T* TensorBase::data_ptr() const {
  return mutable_data_ptr<T>();
}

} // namespace at
