#include "shape_cache.h"

#include <ATen/core/List.h>
#include <c10/core/DefaultDtype.h>

#include <mutex>
#include <unordered_map>

namespace simcuda {
namespace {

// Calls remembered. A program that never repeats itself must not fill memory.
constexpr size_t kMost = 20000;

struct Cache {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<const Shapes>> by_call;
};

Cache& cache() {
  static auto* c = new Cache;
  return *c;
}

// Writes values one after the other; each begins with what it is.
class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}

  template <typename T>
  void raw(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }

  // False when the value is of a kind that this does not know.
  bool value(const c10::IValue& v) {
    raw(v.isNone() ? 'n' : v.isTensor() ? 't' : v.isList() ? 'l' : 's');
    if (v.isTensor()) {
      tensor(v.toTensor());
    } else if (v.isList()) {
      list(v.toListRef());
    } else if (v.isInt()) {
      raw('i');
      raw(v.toInt());
    } else if (v.isBool()) {
      raw('b');
      raw(v.toBool());
    } else if (v.isDouble()) {
      raw('d');
      raw(v.toDouble());
    } else if (v.isComplexDouble()) {
      raw('c');
      raw(v.toComplexDouble());
    } else if (v.isString()) {
      raw('"');
      raw(v.toStringRef().size());
      out_ += v.toStringRef();
    } else if (!v.isNone() && !v.isDevice() && !v.isGenerator()) {
      known_ = false;
    }
    return known_;
  }

 private:
  void list(c10::ArrayRef<c10::IValue> values) {
    raw(values.size());
    for (const c10::IValue& v : values) {
      value(v);
    }
  }

  void tensor(const at::Tensor& t) {
    raw(t.defined());
    if (!t.defined()) {
      return;
    }
    known_ = known_ && t.layout() == at::kStrided;
    raw(t.scalar_type());
    raw(t.device().type());
    raw(t.is_conj());
    raw(t.is_neg());
    raw(t.unsafeGetTensorImpl()->is_wrapped_number());
    raw(t.dim());
    if (known_) {
      for (int64_t i = 0; i < t.dim(); ++i) {
        raw(t.size(i));
        raw(t.stride(i));
      }
    }
  }

  std::string& out_;
  bool known_ = true;
};

}  // namespace

std::optional<std::string> describe_call(const c10::OperatorHandle& op,
                                         c10::ArrayRef<c10::IValue> arguments) {
  std::string call;
  call.reserve(256);
  Writer writer(call);
  writer.raw(&op.schema());  // lives as long as the operator
  writer.raw(c10::get_default_dtype().id());
  for (const c10::IValue& argument : arguments) {
    if (!writer.value(argument)) {
      return std::nullopt;
    }
  }
  return call;
}

std::shared_ptr<const Shapes> recall_shapes(const std::string& call) {
  std::lock_guard<std::mutex> lock(cache().mutex);
  const auto found = cache().by_call.find(call);
  return found == cache().by_call.end() ? nullptr : found->second;
}

void remember_shapes(const std::string& call, const Shapes& shapes) {
  std::lock_guard<std::mutex> lock(cache().mutex);
  if (cache().by_call.size() >= kMost) {
    cache().by_call.clear();
  }
  cache().by_call.emplace(call, std::make_shared<const Shapes>(shapes));
}

}  // namespace simcuda
