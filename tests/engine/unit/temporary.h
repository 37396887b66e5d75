#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

// A folder for the files of tests, which goes with the process that made it.
inline const std::string& temporary_folder() {
  struct Folder {
    Folder() : path(testing::TempDir() + "/lms-unit-XXXXXX") {
      if (!mkdtemp(path.data())) {
        throw std::runtime_error("no temporary folder");
      }
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() {
      std::filesystem::remove_all(path);
    }
    std::string path;
  };
  static const Folder folder;
  return folder.path;
}
