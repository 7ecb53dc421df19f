# Run by `cmake -P` with OUT, HEADER and FILES: writes a source file that holds the files' bytes, as
# HEADER declares them.
set(arrays "")
set(list "")
set(number 0)
string(REPLACE "|" ";" FILES "${FILES}")
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  file(READ ${file} bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "constexpr unsigned char file_${number}[] = {${bytes}};\n")
  string(APPEND list "    {\"${name}\", file_${number}, sizeof file_${number}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT} "#include \"${HEADER}\"

namespace kinora::server {
namespace {

${arrays}
constexpr EmbeddedFile files[] = {
${list}};

}  // namespace

std::span<const EmbeddedFile> embedded_files() { return files; }

}  // namespace kinora::server
")
