// What ThreadSanitizer does not look at.
#pragma once

extern "C" {  // its functions, null where it is not loaded
__attribute__((weak)) void AnnotateIgnoreReadsBegin(const char*, int);
__attribute__((weak)) void AnnotateIgnoreReadsEnd(const char*, int);
__attribute__((weak)) void AnnotateIgnoreWritesBegin(const char*, int);
__attribute__((weak)) void AnnotateIgnoreWritesEnd(const char*, int);
}

namespace simcuda {

// What the thread reads and writes while there is one is nobody's race: bytes
// whose order streams keep. To suppress such reports is not enough, as it takes
// minutes to make them.
class Unchecked {
 public:
  Unchecked() {
    if (AnnotateIgnoreReadsBegin && AnnotateIgnoreWritesBegin) {
      AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
      AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
  }
  ~Unchecked() {
    if (AnnotateIgnoreReadsEnd && AnnotateIgnoreWritesEnd) {
      AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
      AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
  }
  Unchecked(const Unchecked&) = delete;
  Unchecked& operator=(const Unchecked&) = delete;
};

}  // namespace simcuda
