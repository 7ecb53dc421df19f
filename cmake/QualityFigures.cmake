# Run by `cmake -P` with DATA and OUT: writes the source file of src/cli/help/quality_figures.h from
# the table headline-presets of DATA (docs/results/data) and the tables that it quotes.
#
# A cell quotes as docs/results/render has it: {TABLE | ROW | COLUMN} is a cell of another table,
# {TABLE | ROW | COLUMN | N} the Nth number in it. ROW is the first cell of a row, or its first two
# joined by ", ".

# The cell of a table's row and column into `result`.
function(find_cell table row column result)
  file(READ ${DATA}/${table}.json json)
  string(JSON columns LENGTH "${json}" columns)
  string(JSON rows LENGTH "${json}" rows)
  math(EXPR last_column "${columns} - 1")
  math(EXPR last_row "${rows} - 1")
  set(found)
  foreach(i RANGE ${last_row})
    string(JSON first GET "${json}" rows ${i} 0)
    string(JSON second GET "${json}" rows ${i} 1)
    if(NOT row STREQUAL first AND NOT row STREQUAL "${first}, ${second}")
      continue()
    endif()
    foreach(j RANGE ${last_column})
      string(JSON header GET "${json}" columns ${j})
      if(header STREQUAL column)
        string(JSON cell GET "${json}" rows ${i} ${j})
        list(APPEND found "${i}-${j}")
      endif()
    endforeach()
  endforeach()
  list(LENGTH found count)
  if(NOT count EQUAL 1)
    message(FATAL_ERROR "{${table} | ${row} | ${column}} names ${count} cells of ${table}.json")
  endif()
  set(${result} "${cell}" PARENT_SCOPE)
endfunction()

# A cell with everything it quotes put in; `dates` gets when the quoted tables were measured.
function(resolve text result)
  while(text MATCHES "{([^{}|]*)\\|([^{}|]*)\\|([^{}|]*)(\\|([^{}|]*))?}")
    set(quote "${CMAKE_MATCH_0}")
    set(number "${CMAKE_MATCH_5}")
    string(STRIP "${CMAKE_MATCH_1}" table)
    string(STRIP "${CMAKE_MATCH_2}" row)
    string(STRIP "${CMAKE_MATCH_3}" column)
    string(STRIP "${number}" number)
    find_cell("${table}" "${row}" "${column}" cell)
    if(number)
      string(REGEX MATCHALL "-?[0-9][0-9,]*(\\.[0-9]+)?" numbers "${cell}")
      math(EXPR index "${number} - 1")
      list(GET numbers ${index} cell)
    endif()
    string(REPLACE "${quote}" "${cell}" text "${text}")
    file(READ ${DATA}/${table}.json json)
    string(JSON date GET "${json}" date)
    list(APPEND dates "${date}")
  endwhile()
  if(text MATCHES "[{}\"\\\\]")
    message(FATAL_ERROR "headline-presets.json: cannot read '${text}'")
  endif()
  set(${result} "${text}" PARENT_SCOPE)
  set(dates "${dates}" PARENT_SCOPE)
endfunction()

file(READ ${DATA}/headline-presets.json headline)
string(JSON columns LENGTH "${headline}" columns)
string(JSON rows LENGTH "${headline}" rows)
math(EXPR last_column "${columns} - 1")
math(EXPR last_row "${rows} - 1")
set(dates)
set(lines "")
foreach(j RANGE ${last_column})
  string(JSON header GET "${headline}" columns ${j})
  set(cells "")
  foreach(i RANGE ${last_row})
    string(JSON cell GET "${headline}" rows ${i} ${j})
    resolve("${cell}" cell)
    string(APPEND cells ", \"${cell}\"")
  endforeach()
  string(APPEND lines "      {\"${header}\"${cells}},\n")
endforeach()
list(REMOVE_DUPLICATES dates)
list(SORT dates)
list(JOIN dates "\", \"" dates)
file(WRITE ${OUT} "#include \"cli/help/quality_figures.h\"

namespace kinora::cli {

const std::vector<std::vector<std::string>>& quality_figures() {
  static const std::vector<std::vector<std::string>> lines = {
${lines}  };
  return lines;
}

const std::vector<std::string>& quality_dates() {
  static const std::vector<std::string> dates = {\"${dates}\"};
  return dates;
}

}  // namespace kinora::cli
")
