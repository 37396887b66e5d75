#include "reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace simnccl {
namespace {

template <class T>
struct Arithmetic {
  using type = T;
};
template <>
struct Arithmetic<c10::Half> {
  using type = float;
};
template <>
struct Arithmetic<c10::BFloat16> {
  using type = float;
};

// Calls `use` with a null pointer to the type. False if there is none.
template <class Use>
bool with_type(ncclDataType_t type, const Use& use) {
  switch (type) {
    case ncclInt8:
      use(static_cast<int8_t*>(nullptr));
      return true;
    case ncclUint8:
      use(static_cast<uint8_t*>(nullptr));
      return true;
    case ncclInt32:
      use(static_cast<int32_t*>(nullptr));
      return true;
    case ncclUint32:
      use(static_cast<uint32_t*>(nullptr));
      return true;
    case ncclInt64:
      use(static_cast<int64_t*>(nullptr));
      return true;
    case ncclUint64:
      use(static_cast<uint64_t*>(nullptr));
      return true;
    case ncclFloat16:
      use(static_cast<c10::Half*>(nullptr));
      return true;
    case ncclFloat32:
      use(static_cast<float*>(nullptr));
      return true;
    case ncclFloat64:
      use(static_cast<double*>(nullptr));
      return true;
    case ncclBfloat16:
      use(static_cast<c10::BFloat16*>(nullptr));
      return true;
    default:
      return false;
  }
}

template <class T>
T combine(T one, T two, ncclRedOp_t reduction) {
  switch (reduction) {
    case ncclProd:
      return static_cast<T>(one * two);
    case ncclMax:
      return std::max(one, two);
    case ncclMin:
      return std::min(one, two);
    default:  // sums, of what has been multiplied before, too
      return static_cast<T>(one + two);
  }
}

}  // namespace

size_t size_of(ncclDataType_t type) {
  size_t size = type > ncclBfloat16 ? 1 : 0;  // 8-bit floats
  with_type(type, [&](auto* of) { size = sizeof(*of); });
  return size;
}

bool can_reduce(ncclDataType_t type) {
  return with_type(type, [](auto*) {});
}

void multiply(void* numbers, size_t count, ncclDataType_t type, Scale scale) {
  with_type(type, [&](auto* of) {
    using T = std::remove_pointer_t<decltype(of)>;
    using A = typename Arithmetic<T>::type;
    const A factor = scale.device != nullptr
                         ? static_cast<A>(*static_cast<const T*>(scale.device))
                         : static_cast<A>(scale.value);
    auto* at = static_cast<T*>(numbers);
    for (size_t i = 0; i < count; ++i) {
      at[i] = static_cast<T>(static_cast<A>(at[i]) * factor);
    }
  });
}

void reduce(void* result, const std::vector<const void*>& parts, size_t count,
            ncclDataType_t type, ncclRedOp_t reduction) {
  with_type(type, [&](auto* of) {
    using T = std::remove_pointer_t<decltype(of)>;
    using A = typename Arithmetic<T>::type;
    for (size_t i = 0; i < count; ++i) {
      A sum = static_cast<A>(static_cast<const T*>(parts[0])[i]);
      for (size_t part = 1; part < parts.size(); ++part) {
        sum =
            combine(sum, static_cast<A>(static_cast<const T*>(parts[part])[i]),
                    reduction);
      }
      if (reduction == ncclAvg) {
        sum = static_cast<A>(sum / static_cast<A>(parts.size()));
      }
      static_cast<T*>(result)[i] = static_cast<T>(sum);
    }
  });
}

}  // namespace simnccl
