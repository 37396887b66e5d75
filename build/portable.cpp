// What the headers of GCC 11 call and the libstdc++ of manylinux_2_28, which
// ends at GLIBCXX_3.4.24 and CXXABI_1.3.11, does not have.
//
// Each function has the symbol of a missing one, hidden in the library, and
// does its work with what the old libstdc++ has. `lms build` refuses a library
// that needs more, and names it: it belongs here then.
#include <chrono>
#include <future>
#include <new>
#include <sstream>

using std::chrono::nanoseconds;
using std::chrono::seconds;

// std::exception_ptr::exception_ptr(void*): its only data is the address of the
// exception, whose references it counts.
extern "C" void construct(void** self, void* exception) __asm__(
    "_ZNSt15__exception_ptr13exception_ptrC1EPv");

// std::exception_ptr::_M_addref()
void add_reference(void**) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void add_reference(void** self) {
  void* copy = nullptr;
  construct(&copy, *self);
}

// std::nested_exception, whose destructor releases its exception_ptr. That of
// exception_ptr itself will not do: the headers define it inline, by means of
// what is defined here.
struct Nested {
  void* virtual_table;
  void* exception;
};
extern "C" void destroy(Nested* self) __asm__("_ZNSt16nested_exceptionD1Ev");

// std::exception_ptr::_M_release()
void release_reference(void**) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void release_reference(void** self) {
  Nested nested{nullptr, *self};
  destroy(&nested);
  *self = nullptr;
}

// std::__throw_bad_array_new_length()
void throw_bad_length() __asm__("_ZSt28__throw_bad_array_new_lengthv");
void throw_bad_length() {
  throw std::bad_array_new_length();
}

// std::__atomic_futex_unsigned_base::_M_futex_wait_until_steady(): the old one
// waits by the other clock only.
using Futex = std::__atomic_futex_unsigned_base;
bool wait_steady(Futex*, unsigned*, unsigned, bool, seconds, nanoseconds) __asm__(
    "_ZNSt28__atomic_futex_unsigned_base26_M_futex_wait_until_steadyEPjjb"
    "NSt6chrono8durationIlSt5ratioILl1ELl1EEEE"
    "NS2_IlS3_ILl1ELl1000000000EEEE");
bool wait_steady(
    Futex* self,
    unsigned* address,
    unsigned value,
    bool has_timeout,
    seconds whole,
    nanoseconds rest) {
  using namespace std::chrono;
  auto left = whole + rest - steady_clock::now().time_since_epoch();
  auto until = system_clock::now().time_since_epoch() + left;
  auto second = duration_cast<seconds>(until);
  return self->_M_futex_wait_until(
      address, value, has_timeout, second, until - second);
}

template __attribute__((visibility("hidden"))) std::ostringstream::
    basic_ostringstream();
#if __cplusplus >= 202002L
template __attribute__((visibility("hidden"))) std::string std::stringbuf::str()
    const&;
template __attribute__((visibility("hidden"))) std::string std::stringbuf::
    str() &&;
#endif
